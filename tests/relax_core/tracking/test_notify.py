"""Messages about failures and resumptions, to a server in this process."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from data.errors import UserError
from relax_core.config import RelaxConfig, with_options
from relax_core.tracking.notify import _duration, check_addresses, notify, telling


class Inbox:
    """What was posted to ``address`` (Apprise's own JSON format)."""

    def __init__(self) -> None:
        messages = self.messages = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                messages.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"json://127.0.0.1:{self.server.server_port}/path"

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(message["title"], message["message"]) for message in self.messages]


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inbox]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    box = Inbox()
    yield box
    box.server.shutdown()


def config(addresses: str | None) -> RelaxConfig:
    return with_options(RelaxConfig(), {"notify_urls": addresses})


AFTER = "Nothing finished is lost: mend the cause, and the same command goes on."


def test_a_failure_is_told_with_its_reason_and_goes_on_as_it_was(inbox: Inbox) -> None:
    with (
        pytest.raises(UserError, match="engine 0 died"),
        telling(config(f"{inbox.address}, {inbox.address}"), "runs/mine", 0, lambda: "1 of 4 steps"),
    ):
        raise UserError("engine 0 died.")
    assert inbox.told == [("Relax failed: runs/mine", f"UserError: engine 0 died.\n1 of 4 steps\n{AFTER}")] * 2


def test_a_run_that_goes_on_says_so_and_one_that_ends_well_too(inbox: Inbox) -> None:
    with telling(config(inbox.address), "runs/mine", 3, lambda: "4 of 4 steps, mean reward 0.100 -> 0.200"):
        assert inbox.told == [("Relax goes on with runs/mine", "Step 4 is next.")]
    ((title, text),) = inbox.told[1:]
    assert title == "Relax finished runs/mine"
    assert text == "4 of 4 steps, mean reward 0.100 -> 0.200, 0 s. See `relax show runs/mine`."


def test_what_somebody_else_tells_is_not_told_twice(inbox: Inbox) -> None:
    # a supervisor has told of the new start, and will tell of the next one
    with (
        pytest.raises(UserError),
        telling(config(inbox.address), "runs/mine", 3, restarted=True, watched=lambda error: True),
    ):
        raise UserError("engine 0 died.")
    assert inbox.told == []


def test_a_run_that_is_asked_to_end_tells_nothing(inbox: Inbox) -> None:
    with pytest.raises(KeyboardInterrupt), telling(config(inbox.address), "runs/mine", 0):
        raise KeyboardInterrupt
    assert inbox.told == []


def test_secrets_of_an_error_are_not_told(inbox: Inbox) -> None:
    error = OSError("s3://me:hidden-one@bucket/x: no such key")
    with pytest.raises(OSError, match="bucket"), telling(config(inbox.address), "runs/mine", 0):
        raise error
    assert "bucket/x: no such key" in inbox.told[0][1]
    assert "hidden-one" not in inbox.told[0][1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.4, "4 s"), (89, "89 s"), (92, "2 min"), (5300, "88 min"), (3 * 3600 + 300, "3 h 05 min")]
)
def test_how_long_it_took_is_short(seconds: float, text: str) -> None:
    assert _duration(seconds) == text


def test_a_message_that_does_not_arrive_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    notify(config("json://127.0.0.1:1/secret"), "title", "text")
    assert "--notify-urls: the message did not reach every address" in caplog.text
    assert "secret" not in "".join(r.getMessage() for r in caplog.records if r.name.startswith("relax_core"))
    notify(config(None), "title", "text")


def test_an_unknown_address_is_an_error_that_does_not_show_it() -> None:
    with pytest.raises(UserError, match=r"address 2 of 2 \(carrier-pigeon://\.\.\.\)") as error:
        check_addresses(config("json://localhost, carrier-pigeon://token"))
    assert "token" not in str(error.value)
    with pytest.raises(UserError, match="no scheme"):
        check_addresses(config("someone"))
    check_addresses(config("json://localhost"))
    check_addresses(config(None))
