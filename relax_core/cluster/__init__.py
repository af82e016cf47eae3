"""The Ray side: the head, named actors, the pool of engines. Ray is imported here and in ``training/actor.py`` only."""
