"""Which engine a setting is for, where a session has several."""

from powerband.engines.base import get_engine
from powerband.records.errors import unknown_name


def split_settings(pairs: tuple[str, ...], engines: tuple[str, ...]) -> dict[str, list[str]]:
    """``--set`` pairs by engine: ``ENGINE.key=value`` is for that one, ``key=value`` for every one that knows the key.

    Raises RequestError where none of ``engines`` knows a key.
    """
    found: dict[str, list[str]] = {name: [] for name in engines}
    known = {name: {knob.name for knob in get_engine(name).knobs()} for name in engines}
    for pair in pairs:
        key = pair.partition("=")[0].strip()
        owner, dot, _ = key.partition(".")
        if dot:
            if owner not in found:
                raise unknown_name("engine of this session", owner, found)
            found[owner].append(pair.strip()[len(owner) + 1 :])
            continue
        plain = key.lstrip("-").replace("-", "_")
        takers = [name for name in engines if plain in known[name]]
        if not takers:
            raise unknown_name("knob of this session's engines", plain, set().union(*known.values()))
        for name in takers:
            found[name].append(pair)
    return found
