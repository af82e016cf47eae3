"""The proxy of requests to the outside."""

import os
import urllib.request

import pytest

from relax_core.proxy import proxied, proxy_environment


def test_without_a_proxy_nothing_changes() -> None:
    assert proxy_environment(None, {"http_proxy": "http://other"}) == {}
    before = dict(os.environ)
    with proxied(None):
        assert dict(os.environ) == before


def test_it_is_there_until_the_last_has_left_whoever_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    before = dict(os.environ)
    first, second = proxied("http://proxy:3128"), proxied("http://proxy:3128")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["http_proxy"] == "http://proxy:3128"
    second.__exit__(None, None, None)
    assert dict(os.environ) == before


def test_requests_of_this_process_use_it_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "inner")
    monkeypatch.delenv("http_proxy", raising=False)
    before = dict(os.environ)
    with proxied("http://proxy:3128"):
        assert urllib.request.getproxies()["https"] == "http://proxy:3128"
        assert urllib.request.proxy_bypass("127.0.0.1")
        assert urllib.request.proxy_bypass("inner")
        assert not urllib.request.proxy_bypass("outside.example")
    assert dict(os.environ) == before
