"""Relax: post-training of language models as a durable pipeline. No module in this package imports Prefect."""

__version__ = "0.1.0"
