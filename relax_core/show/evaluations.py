"""Results of evaluations, as samples.

Guarantee: of several results of a set the newest are shown, unless a step is named; a run is only read.
"""

import math

from data.errors import UserError
from data.store import RunStore
from relax_core.show.reading import Shown, joined


def eval_paths(store: RunStore, name: str) -> list[tuple[int | None, str, str]]:
    """Where results of an evaluation set are, those of the newest weights last: step, path, title. Those of
    ``relax evaluate`` have no step, and come after those of the same weights."""
    found: list[tuple[float, tuple[int | None, str, str]]] = []
    for path in _eval_files(store):
        number, kind, file = path.split("/")[-3:]
        if file != f"{name}.parquet":
            continue
        if kind in _EVALS:
            weights, title = int(number) + (kind == "eval"), f"{_EVALS[kind]} step {int(number)}"
            found.append((weights, (int(number), path, f"evaluation {name} {title}")))
        elif kind.isdigit():
            found.append((int(kind), (None, path, f"evaluation {name} of weights {int(kind)}")))
        else:
            found.append((math.inf, (None, path, f"evaluation {name} of weights {kind}")))
    return [place for _, place in sorted(found, key=lambda one: one[0])]


_EVALS = {"eval_before": "before", "eval": "of"}


def _eval_files(store: RunStore) -> list[str]:
    """Tables of evaluations, oldest first, from two listings, however many steps there are."""
    paths = [path.split("/") for path in store.sizes("steps") if path.endswith(".parquet")]
    places = {kind: at for at, kind in enumerate(_EVALS)}
    steps = [path for path in paths if len(path) == 4 and path[1].isdigit() and path[2] in places]
    steps.sort(key=lambda path: (int(path[1]), places[path[2]], path[3]))
    beside = sorted(path for path in store.sizes("evaluations") if path.endswith(".parquet") and path.count("/") == 2)
    return ["/".join(path) for path in steps] + beside


def eval_sets(store: RunStore) -> list[str]:
    """Names of the evaluation sets that the run has results of."""
    return sorted({path.rpartition("/")[2].removesuffix(".parquet") for path in _eval_files(store)})


def read_eval(store: RunStore, name: str, step: int | None = None) -> Shown:
    """The samples of an evaluation set: of a step, or the newest results.

    Raises:
        UserError: there are none.
    """
    found = [place for place in eval_paths(store, name) if step is None or place[0] == step]
    if not found:
        where = "" if step is None else f" of step {step}"
        known = eval_sets(store)
        raise UserError(
            f"--eval {name}: {store.url} has no results{where}.",
            f"It has results of: {', '.join(known)}." if known else "No set has been evaluated in it.",
        )
    of, path, title = found[-1]
    table = store.read_table(path)
    return Shown(title, of, joined(table, table, None, None), ["no advantages and no gap: nothing trains on these"])
