"""The page as a browser shows it, from a file, without a network."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handmade_run import HOSTILE, IDS, PROMPT, STEP, byte_tokenizer, rollout, write_config, write_run

from data.store import RunStore
from relax_core.show import page, scale

FIRST, SECOND, THIRD, FOURTH = IDS


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    store = write_run(folder / "run", byte_tokenizer(folder / "model"))
    return Path(page.write_page(store, STEP))


@pytest.fixture
def opened(browser: Any, file: Path) -> Iterator[Any]:
    """The page; at the end nothing was wrong with it, and it has asked for nothing."""
    context = browser.new_context(offline=True, color_scheme="light")
    tab = context.new_page()
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    context.on("request", lambda request: asked.append(request.url))
    tab.goto(file.as_uri())
    tab.wait_for_selector(".t")
    yield tab
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    context.close()


def colour(tab: Any, sample: str, token: int) -> tuple[list[int], float]:
    """Red, green and blue, and the opacity, as drawn."""
    node = tab.locator(f"#sample-{sample} .t[data-at='{token}']")
    text = node.evaluate("node => getComputedStyle(node).backgroundColor")
    numbers = [float(number) for number in re.findall(r"[\d.]+", text)]
    return [round(number) for number in numbers[:3]], numbers[3] if len(numbers) > 3 else 1.0


def expect(found: tuple[list[int], float], of: scale.RGB, opacity: float) -> None:
    assert found[0] == list(of)
    assert found[1] == pytest.approx(opacity, abs=0.003)  # a browser keeps 8 bits


def order(tab: Any) -> list[str]:
    return [
        str(name).removeprefix("sample-") for name in tab.eval_on_selector_all(".card", "all => all.map(n => n.id)")
    ]


def test_tokens_have_the_colours_of_their_values(opened: Any) -> None:
    # the bound of gaps is 0.2: -0.2 is at it (0.6), 0.1 at half of it (0.3)
    assert opened.input_value("#mode") == "gap"
    expect(colour(opened, FIRST, 0), scale.BELOW, 0.6)
    expect(colour(opened, FIRST, 1), scale.ABOVE, 0.3)
    assert colour(opened, FIRST, 2) == ([0, 0, 0], 0.0)
    # the bound of advantages is 1
    opened.select_option("#mode", "advantage")
    expect(colour(opened, SECOND, 0), scale.BELOW, 0.6)
    expect(colour(opened, FOURTH, 0), scale.ABOVE, 0.3)
    opened.select_option("#mode", "mask")
    expect(colour(opened, FIRST, 2), scale.ABOVE, 0.3)
    expect(colour(opened, FIRST, 3), scale.NEUTRAL, 0.6)
    # version 3 is the first of the page's versions, 4 the second
    opened.select_option("#mode", "version")
    expect(colour(opened, FIRST, 0), scale.VERSIONS[0], 0.3)
    expect(colour(opened, FIRST, 1), scale.VERSIONS[1], 0.3)
    # log-prob -1: 0.6 (1 - exp(-1))
    opened.select_option("#mode", "probability")
    expect(colour(opened, FIRST, 0), scale.BELOW, 0.6 * (1 - 0.36788))
    opened.select_option("#mode", "none")
    assert colour(opened, FIRST, 0) == ([0, 0, 0], 0.0)


def test_the_legend_says_what_a_colour_means(opened: Any) -> None:
    assert "+0.2" in opened.inner_text("#legend")
    opened.select_option("#mode", "version")
    assert opened.inner_text("#legend").split() == ["version", "3", "version", "4"]


def test_a_token_tells_what_is_known_of_it(opened: Any) -> None:
    title = opened.get_attribute(f"#sample-{FIRST} .t[data-at='0']", "title")
    assert title.split("\n") == [
        "token 0",
        "id 65",
        'text "A"',
        "engine log-prob -1 (p 0.368)",
        "trainer log-prob -1.2",
        "gap -0.2",
        "advantage 1",
        "trained on",
        "weight version 3",
    ]
    # "é" is two tokens: the text stands with the first
    title = opened.get_attribute(f"#sample-{FIRST} .t[data-at='4']", "title")
    assert 'text "é" (of 2 tokens), bytes a9' in title
    assert opened.inner_text(f"#sample-{FIRST} .t[data-at='3']") == "é"
    opened.hover(f"#sample-{FIRST} .t[data-at='0']")
    assert opened.inner_text("#status").startswith("token 0  ·  id 65")


def test_hostile_texts_are_texts(opened: Any) -> None:
    text = opened.text_content(f"#sample-{SECOND} .tokens")
    assert text == HOSTILE
    assert opened.locator("img, .prompt b, .tokens :not(.t)").count() == 0
    assert PROMPT in opened.text_content("main")
    assert opened.title() == f"step {STEP} · {opened.inner_text('.run')}"


def test_samples_are_sorted(opened: Any) -> None:
    opened.select_option("#view", "samples")
    assert order(opened) == [FIRST, FOURTH, SECOND, THIRD]  # 1, 0.5, 0, no score
    opened.click("#direction")
    assert order(opened) == [SECOND, FOURTH, FIRST, THIRD]
    opened.select_option("#sort", "length")  # 5, many, 1 and 4 tokens
    assert order(opened) == [THIRD, FOURTH, FIRST, SECOND]


def test_groups_stand_side_by_side(opened: Any) -> None:
    ids = "all => all.map(group => [...group.querySelectorAll('.card')].map(node => node.id))"
    groups = opened.eval_on_selector_all(".group", ids)
    assert groups == [[f"sample-{FIRST}", f"sample-{SECOND}"], [f"sample-{FOURTH}", f"sample-{THIRD}"]]


def test_samples_are_filtered(opened: Any) -> None:
    opened.fill("#text", "0001-001")
    opened.wait_for_selector("#count:has-text('1 of 4 samples')")
    assert order(opened) == [FOURTH]
    opened.fill("#text", "")
    opened.wait_for_selector("#count:has-text('4 of 4 samples')")
    opened.check("#mixed")
    assert order(opened) == [FIRST, SECOND]
    opened.select_option("#ended", "truncated")
    assert order(opened) == [SECOND]


def test_tokens_are_reached_with_the_keyboard(opened: Any) -> None:
    opened.focus(f"#sample-{FIRST} .tokens")
    for _ in range(2):
        opened.keyboard.press("ArrowRight")
    assert opened.inner_text("#status").startswith("token 1  ·  id 66")
    opened.keyboard.press("ArrowLeft")
    assert opened.inner_text("#status").startswith("token 0  ·  id 65")


def test_a_long_response_is_drawn_as_the_reader_comes_to_it(browser: Any, tmp_path: Path) -> None:
    # 1 + 2 * 2000 tokens; token 400 is the second of an "é"
    store = RunStore(str(tmp_path / "run"))
    store.write_table(store.step_path(STEP, "rollout.parquet"), rollout(IDS[:1], ["x" + "é" * 2000]))
    write_config(store, byte_tokenizer(tmp_path / "model"))
    tab = browser.new_page()
    tab.goto(Path(page.write_page(store, STEP)).as_uri())
    tab.wait_for_selector(".t")
    first = tab.locator(".t").count()
    assert 400 <= first < 4001
    for _ in range(12):
        tab.eval_on_selector(".tokens", "node => { node.scrollTop = node.scrollHeight; }")
        tab.wait_for_timeout(50)
    tab.wait_for_selector(".t[data-at='4000']")
    assert tab.locator(".t").count() == 4001
    assert tab.text_content(".tokens") == "x" + "é" * 2000
    assert 'text "é" (of 2 tokens)' in tab.get_attribute(".t[data-at='400']", "title")
    tab.close()


def test_the_theme_is_the_systems_or_the_readers(opened: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.evaluate(ground) == f"rgb{scale.LIGHT[0]}"
    opened.emulate_media(color_scheme="dark")
    assert opened.evaluate(ground) == f"rgb{scale.DARK[0]}"
    opened.select_option("#theme", "light")
    assert opened.evaluate(ground) == f"rgb{scale.LIGHT[0]}"
