"""What lives on this machine and in its cluster: services, runs, actors, the queue.

Guarantee: looks only, changes nothing; what does not answer within five seconds is shown as such and holds nothing else
up; works without Ray and without Prefect.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import psutil

from data.errors import UserError
from relax_core.cluster import drivers, processes, services
from relax_core.engines.devices import ask
from relax_core.tracking.position import position_of

ANSWER_SECONDS = 5.0

_BEFORE_STAGES = ("driver started", "actor started", "actor found")
"""What a run says last while its trainer and engines are started or found."""

_SHOWN = ("version", "weight_version", "busy_with", "dirty", "broken", "url")


def overview() -> dict[str, Any]:
    """Everything, as JSON has it.

    Returns:
        ``services``, ``runs`` and ``actors``, lists of objects, and ``queue`` (None: no server stands); memory in
        bytes, times in seconds since 1970.
    """
    standing, driving = services.recorded(), drivers.living()
    on_devices = device_memory()
    actors = _actors(standing, driving)
    for actor in actors:
        members = processes.family(actor["pid"]) if actor.get("here") and actor.get("pid") else []
        actor["memory"] = processes.memory(members) if members else None
        actor["device_memory"] = sum(on_devices.get(one.pid, 0) for one in members) if on_devices else None
        actor["since"] = _since(members)
    return {
        "services": [_service(service, on_devices) for service in services.remembered().values()],
        "runs": [_run(driver) for driver in driving],
        "actors": actors,
        "queue": queue(standing["prefect"]) if "prefect" in standing else None,
    }


def _since(members: list[psutil.Process]) -> float | None:
    try:
        return members[-1].create_time() if members else None
    except psutil.Error:
        return None


def _service(service: services.Service, on_devices: Mapping[int, int]) -> dict[str, Any]:
    members = processes.family(service.pid) if service.alive() else []
    return {
        **{key: value for key, value in asdict(service).items() if key != "created"},
        "alive": bool(members),
        "since": service.created,
        "memory": processes.memory(members),
        "device_memory": sum(on_devices.get(one.pid, 0) for one in members) if on_devices else None,
    }


def _run(driver: drivers.Driver) -> dict[str, Any]:
    shown = {key: value for key, value in asdict(driver).items() if key != "created"}
    shown["memory"] = processes.memory(processes.family(driver.pid))
    try:
        where = asdict(position_of(driver.run))
    except UserError as error:
        where = {"problem": error.problem}
    return {**shown, **where}


def _actors(standing: Mapping[str, services.Service], driving: Iterable[drivers.Driver]) -> list[dict[str, Any]]:
    heads = [standing["ray"].address] if "ray" in standing else []
    heads += [driver.ray for driver in driving if driver.ray]
    if not heads:
        return []
    from relax_core.cluster.looking import actors_of  # here: Ray costs half a second

    return [actor for head in heads for actor in actors_of(head, ANSWER_SECONDS)]


def describe(answer: Any) -> dict[str, Any]:
    """What of an actor's ``status`` or ``info`` is shown."""
    fields: Mapping[str, Any] = answer if isinstance(answer, dict) else vars(answer)
    shown = {key: fields[key] for key in _SHOWN if fields.get(key) is not None}
    shown = {key: value for key, value in shown.items() if value is not False and value != ""}
    if "weight_version" in shown:
        shown["version"] = shown.pop("weight_version")
    return shown


def device_memory() -> dict[int, int]:
    """Bytes of GPU memory by process; empty where there is no GPU."""
    used: dict[int, int] = {}
    for line in ask("compute-apps=pid,used_memory", ANSWER_SECONDS):
        pid, _, mebibytes = line.partition(",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():
            used[int(pid)] = used.get(int(pid), 0) + int(mebibytes) * 2**20
    return used


def queue(server: services.Service) -> dict[str, Any]:
    """Flow runs of the work pool that wait or run, and its workers; ``problem`` where the server does not say."""
    pool = {"name": {"any_": [services.POOL]}}
    states = {"type": {"any_": ["SCHEDULED", "PENDING", "RUNNING"]}}
    try:
        rows = services.ask(
            server, "flow_runs/filter", {"flow_runs": {"state": states}, "work_pools": pool, "limit": 200}
        )
        workers = services.ask(server, f"work_pools/{services.POOL}/workers/filter", {})
    except (OSError, ValueError) as error:
        return {"problem": str(error)}
    now = datetime.now(UTC)
    found: dict[str, Any] = {"running": [], "waiting": [], "scheduled": 0}
    for row in rows:
        start = _time(row.get("expected_start_time"))
        if row["state_type"] == "RUNNING":
            found["running"].append(_flow_run(row))
        elif start is None or start <= now:
            found["waiting"].append(_flow_run(row))
        else:
            found["scheduled"] += 1
    found["workers"] = [{"name": row["name"], "status": row.get("status")} for row in workers]
    return found


def _flow_run(row: Mapping[str, Any]) -> dict[str, Any]:
    start = _time(row.get("start_time") or row.get("expected_start_time"))
    return {
        "id": row["id"],
        "name": row["name"],
        "state": row.get("state_name"),
        "since": start and start.timestamp(),
    }


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def lines(found: Mapping[str, Any], now: float | None = None) -> list[str]:
    """An overview as text."""
    now = time.time() if now is None else now
    shown = ["Services", *(_service_line(row, now) for row in found["services"])]
    if not found["services"]:
        shown.append("  nothing stands; `relax up` starts it, and `relax train` works without it too")
    shown += ["Runs driven on this machine", *(line for row in found["runs"] for line in _run_lines(row, now))]
    if not found["runs"]:
        shown.append("  none")
    if found["actors"]:
        shown += ["Actors", *(_actor_line(row, now) for row in found["actors"])]
    if found["queue"] is not None:
        shown += ["Flow runs", *_queue_lines(found["queue"], now)]
    return shown


def _service_line(row: Mapping[str, Any], now: float) -> str:
    if not row["alive"]:
        return f"  {row['name']:8} died; `relax up` starts it again. Its log: {row['log']}"
    where = f"in {row['folder']}" if row["folder"] else row["address"]
    guard = ", with a password" if row["protected"] and row["name"] == "prefect" else ""
    return f"  {row['name']:8} {where}{guard}  {_facts(row, now)}  log {row['log']}"


def _run_lines(row: Mapping[str, Any], now: float) -> list[str]:
    head = f"  {row['run']}  {row.get('done', 0)} of {row['steps']} steps done  {_facts(row, now)}"
    if "problem" in row:
        return [head, f"    {row['problem']}"]
    stages = [
        f"    step {one['step'] + 1}: {one['stage']} for {seconds_text(now - one['since'])}" for one in row["running"]
    ]
    weights = [f"weights {row['version']}"] if row["version"] is not None else []
    if row["staleness"] is not None:
        most = f" (at most {row['max_staleness']})" if row["max_staleness"] is not None else ""
        weights.append(f"staleness {row['staleness']}{most}")
    if row["step_seconds"] is not None:
        weights.append(f"last step {row['step_seconds']:.1f} s")
    if not stages:
        what = "starting trainer and engines" if row["last"] in _BEFORE_STAGES else "between stages"
        stages = [f"    {what}, after: {row['last']}"]
    return [head, *stages, *([f"    {', '.join(weights)}"] if weights else [])]


def _actor_line(row: Mapping[str, Any], now: float) -> str:
    said = row.get("problem") or " ".join(f"{key}={value}" for key, value in row["says"].items())
    return f"  {row['name']:40} {said}  {_facts(row, now)}".rstrip()


def _queue_lines(found: Mapping[str, Any], now: float) -> list[str]:
    if "problem" in found:
        return [f"  the Prefect server does not say: {found['problem']}"]
    shown = [f"  runs    {one['name']}  since {_ago(one, now)}" for one in found["running"]]
    shown += [f"  waits   {one['name']}  {one['state']}, since {_ago(one, now)}" for one in found["waiting"]]
    if found["scheduled"]:
        shown.append(f"  {found['scheduled']} scheduled for later")
    online = sum(one["status"] == "ONLINE" for one in found["workers"])
    return [*(shown or ["  none runs or waits"]), *([] if online else ["  no worker is online: nothing would start"])]


def _ago(row: Mapping[str, Any], now: float) -> str:
    return "?" if row["since"] is None else seconds_text(now - row["since"])


def _facts(row: Mapping[str, Any], now: float) -> str:
    parts = [f"process {row['pid']}"] if row.get("pid") else []
    if row.get("since"):
        parts.append(f"for {seconds_text(now - row['since'])}")
    if row.get("memory"):
        parts.append(bytes_text(row["memory"]))
    if row.get("device_memory"):
        parts.append(f"GPU {bytes_text(row['device_memory'])}")
    return f"({', '.join(parts)})" if parts else ""


def seconds_text(seconds: float) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `4 d 3 h`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def bytes_text(count: int) -> str:
    """`512 MiB`, `3.1 GiB`."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count // 2**20} MiB"
