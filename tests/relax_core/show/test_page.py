"""What a page holds, and what it leaves out."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade_run import HOSTILE, IDS, STEP, byte_tokenizer, rollout, write_run
from recorded_runs import files

from data.errors import UserError
from data.store import RunStore
from relax_core.show import content, page, scale
from relax_core.show.content import select
from relax_core.show.reading import Sample, read_step


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def sample(name: str, reward: float | None, length: int = 1) -> Sample:
    return Sample(name, name[0], "prompt", "text", None, 1, length, "completed", "stop", [0], False, 0, reward)


def names(samples: list[Sample]) -> str:
    return " ".join(one.sample_id for one in samples)


def test_whole_groups_are_taken_from_both_ends_of_the_order() -> None:
    samples = [sample(f"{group}{k}", reward) for group, reward in zip("abcd", (4, 3, 2, 1), strict=True) for k in "12"]
    # room for two groups: that of the first sample and that of the last
    assert names(select(samples, limit=4).samples) == "a1 a2 d1 d2"
    assert names(select(samples, limit=5).samples) == "a1 a2 d1 d2"
    assert select(samples, limit=5).of == 8
    assert len(select(samples, limit=8).samples) == 8


def test_one_group_is_there_even_where_it_is_too_large() -> None:
    assert names(select([sample("a1", 1), sample("a2", 0)], limit=1).samples) == "a1"
    assert select([]).samples == []


def test_tokens_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PAGE_TOKENS", 25)
    samples = [sample("a1", 3, 10), sample("b1", 2, 10), sample("c1", 1, 10)]
    assert names(select(samples).samples) == "a1 c1"


def test_long_responses_lose_their_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "SAMPLE_TOKENS", 4)  # three from the beginning, one from the end
    data = data_of(page.page(write_run(tmp_path), read_step(RunStore(str(tmp_path)), STEP)))
    first = next(one for one in data["samples"] if one["sample_id"] == IDS[0])
    words = np.frombuffer(base64.b64decode(first["packed"]), "<u2")
    assert first["cut"] == [3, 1]
    assert [data["ids"][word] for word in words] == [65, 66, 55, 0xA9]
    # of 5, 60 and odd, 1 and 4 tokens
    assert "2 responses of more than 4 tokens are shown without their middle" in data["left_out"]


def test_columns_are_packed_and_equal_ones_are_one_number(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    data = data_of(page.page(store, read_step(store, STEP)))
    first = next(one for one in data["samples"] if one["sample_id"] == IDS[0])
    columns = first["columns"]
    assert columns["log_probs"] == -1.0
    assert columns["advantages"] == 1.0
    assert np.frombuffer(base64.b64decode(columns["old"]), "<f4").tolist() == pytest.approx([-1.2, -0.9, -1, -1, -1])
    assert np.frombuffer(base64.b64decode(columns["mask"]), "u1").tolist() == [1, 1, 1, 0, 0]
    # places in the list of versions
    assert data["versions"] == [3, 4]
    assert np.frombuffer(base64.b64decode(columns["versions"]), "<u2").tolist() == [0, 1, 1, 1, 1]
    assert data["bounds"] == {"gap": 0.2, "advantages": 1.0}


def test_texts_of_tokens_are_there_once_and_characters_stay_whole(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run", byte_tokenizer(tmp_path / "model"))
    data = data_of(page.page(store, read_step(store, STEP)))
    assert len(set(data["ids"])) == len(data["ids"]) == len(data["texts"])
    assert data["texts"][data["ids"].index(65)] == "A"
    first = next(one for one in data["samples"] if one["sample_id"] == IDS[0])
    assert first["joined"] == [[3, 2, "é"]]
    assert data["parts"][str(data["ids"].index(0xC3))] == "c3"


def test_a_model_that_a_relative_path_names_is_looked_for_above_the_run(tmp_path: Path) -> None:
    byte_tokenizer(tmp_path / "models/tiny")
    store = write_run(tmp_path / "runs/one", Path("models/tiny"))
    assert data_of(page.page(store, read_step(store, STEP)))["texts"] is not None


def test_without_a_tokenizer_the_page_says_so_and_shows_ids(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run", tmp_path / "gone")
    data = data_of(page.page(store, read_step(store, STEP)))
    assert data["texts"] is None
    assert any("token ids instead of texts" in one and "gone" in one for one in data["missing"])
    assert data_of(page.page(write_run(tmp_path / "b"), read_step(store, STEP)))["texts"] is None


def test_no_text_of_a_run_is_markup(tmp_path: Path) -> None:
    store = write_run(tmp_path / "a" / "<b>&run")
    text = page.page(store, read_step(store, STEP))
    data = data_of(text)
    assert HOSTILE in [one["response"] for one in data["samples"]]
    # the page's own elements alone: two scripts, no image, the title escaped
    assert text.count("<script") == text.count("</script>") == 2
    assert "<img" not in text
    assert "&lt;b&gt;&amp;run" in text
    assert "http://" not in text
    assert "https://" not in text


def test_the_page_allows_its_own_script_and_style_alone(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    text = page.page(store, read_step(store, STEP))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]


def test_the_themes_are_those_whose_contrast_is_known(tmp_path: Path) -> None:
    style = Path(page.__file__).with_name("page.css").read_text()
    for colour in (*scale.LIGHT, *scale.DARK):
        assert f"#{bytes(colour).hex()}" in style


def test_the_page_of_a_run_lies_beside_its_steps_and_is_the_same_each_time(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    before = files(tmp_path)
    uri = page.write_page(store, STEP)
    assert uri == str(tmp_path / "pages/step-000004.html")
    first = Path(uri).read_bytes()
    assert page.write_page(store, STEP) == uri
    assert Path(uri).read_bytes() == first
    assert {name: one for name, one in files(tmp_path).items() if not name.startswith("pages/")} == before


def test_a_run_keeps_the_pages_of_its_newest_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "PAGES_KEPT", 2)
    store = RunStore(str(tmp_path))
    for step in range(3):
        store.write_table(store.step_path(step, "rollout.parquet"), rollout())
        page.write_page(store, step)
    (tmp_path / "pages/mine.html").write_text("a person's own file")
    page.write_page(store, 2)
    assert store.ls("pages") == ["mine.html", "step-000001.html", "step-000002.html"]
    page.write_page(store, 0)  # of an old step: it was asked for
    assert "step-000000.html" in store.ls("pages")


def test_a_page_goes_where_it_is_told(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run")
    assert page.write_page(store, STEP, str(tmp_path / "out.html")) == str(tmp_path / "out.html")
    assert page.write_page(store, STEP, "memory://pages/out.html") == "memory:///pages/out.html"
    with pytest.raises(UserError, match="is a folder"):
        page.write_page(store, STEP, f"{tmp_path}/")


def test_who_asks_for_more_samples_gets_more_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "PAGE_TOKENS", 20)
    monkeypatch.setattr(content, "PAGE_SAMPLES", 2)
    samples = [sample(f"{group}1", 1, 10) for group in "abcdef"]
    # 20 tokens are two samples of ten; a limit of four is twice that
    assert len(select(samples, limit=2).samples) == 2
    assert len(select(samples, limit=4).samples) == 4
