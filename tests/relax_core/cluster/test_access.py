"""Token and password of the standing services."""

from pathlib import Path

import pytest

from data.errors import UserError
from relax_core.cluster import access


def test_what_is_made_is_kept_and_private(tmp_path: Path) -> None:
    token = access.ray_token(tmp_path, {}).read_text()
    auth = access.prefect_auth(tmp_path, {})
    assert access.ray_token(tmp_path, {}).read_text() == token
    assert access.prefect_auth(tmp_path, {}) == auth
    assert auth.startswith("relax:")
    assert len(auth) > 30
    for path in (tmp_path / "secrets").iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_what_is_given_wins_over_what_is_kept(tmp_path: Path) -> None:
    access.ray_token(tmp_path, {})
    access.prefect_auth(tmp_path, {})
    assert access.ray_token(tmp_path, {"RAY_AUTH_TOKEN": "t" * 32}).read_text() == "t" * 32
    assert access.prefect_auth(tmp_path, {"PREFECT_API_AUTH_STRING": "me:word"}) == "me:word"
    both = {"PREFECT_API_AUTH_STRING": "me:word", "PREFECT_SERVER_API_AUTH_STRING": "it:self"}
    assert access.prefect_auth(tmp_path, both) == "it:self"
    (tmp_path / "given").write_text("of a file\n")
    path = access.ray_token(tmp_path, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "given")})
    assert path.read_text() == "of a file"
    assert path == access.secret_file(tmp_path, access.RAY_TOKEN)


@pytest.mark.parametrize("text", ["word", "me:", ":word"])
def test_a_password_without_its_parts_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NAME:PASSWORD") as raised:
        access.prefect_auth(tmp_path, {"PREFECT_SERVER_API_AUTH_STRING": text})
    assert "word" not in raised.value.problem.removeprefix("PREFECT_SERVER_API_AUTH_STRING is no password")


def test_a_token_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"RAY_AUTH_TOKEN_PATH .*none: cannot be read"):
        access.ray_token(tmp_path, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "none")})


def test_clients_of_this_machine_need_not_be_told(tmp_path: Path) -> None:
    auth = access.prefect_auth(tmp_path, {})
    assert access.prefect_environment(tmp_path, True) == {"PREFECT_API_AUTH_STRING": auth}
    assert access.prefect_environment(tmp_path, False) == {}
    assert access.ray_environment(tmp_path, True) == {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(access.secret_file(tmp_path, access.RAY_TOKEN)),
    }
    assert access.ray_environment(tmp_path, False) == {"RAY_AUTH_MODE": "disabled"}


def test_a_password_becomes_the_header_of_basic_authentication() -> None:
    # base64("me:word") by hand: 6d 65 3a | 77 6f 72 | 64 -> "bWU6" "d29y" "ZA=="
    assert access.basic("me:word") == "Basic bWU6d29yZA=="
