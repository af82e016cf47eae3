"""How slices of a batch reach the trainer while their step still generates (--data-transport)."""

import os

# Of TransferQueue, which reads them when it is imported: it changes torch's number of threads round its own work, and
# writes what we tell as well.
os.environ.setdefault("TQ_NUM_THREADS", os.environ.get("OMP_NUM_THREADS") or str(os.cpu_count() or 1))
os.environ.setdefault("TQ_LOGGING_LEVEL", "CRITICAL")
