"""Answers of mathematical problems: where a response gives its answer, what it is, whether it is the label's.

Guarantee: a response is data; nothing here evaluates code, and reading takes time linear in the response.
"""
