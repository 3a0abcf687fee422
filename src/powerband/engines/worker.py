"""A backend that lives in a Python process, behind an OpenAI-compatible server.

``python -m powerband.engines.worker transformers --model DIR --port 8080 --set batching=continuous ...``. The server
listens once the model is loaded, so that its first answer is a real one. It ends with SIGTERM.
"""

import argparse
import asyncio
import os
import sys
from importlib import import_module
from typing import Any

from powerband.engines.http_server import listen
from powerband.engines.worker_api import Api
from powerband.engines.worker_job import Backend
from powerband.records.config import Knob, Value, parse_settings
from powerband.records.errors import PowerbandError

# Name -> (module and function that makes the backend, module and function that lists its knobs).
BACKENDS = {
    "transformers": (
        "powerband.engines.transformers_backend:open_backend",
        "powerband.engines.transformers_knobs:transformers_knobs",
    ),
    "openvino": ("powerband.engines.openvino_backend:open_backend", "powerband.engines.openvino_knobs:openvino_knobs"),
}


def load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


async def serve(backend: Backend, *, host: str, port: int, model: str, tokenizer_threads: int) -> None:
    api = Api(backend, model, tokenizer_threads)
    await listen(api.serve, host, port, sys.stderr)
    api.close()


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m powerband.engines.worker", allow_abbrev=False)
    parser.add_argument("backend", choices=sorted(BACKENDS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(argv)
    make, list_knobs = BACKENDS[given.backend]
    knobs: tuple[Knob, ...] = load(list_knobs)()
    try:
        values: dict[str, Value] = parse_settings(given.set, knobs)
        backend: Backend = load(make)(given.model, values)
    except PowerbandError as error:
        sys.stderr.write(f"error: {error.message}; {error.hint}\n")  # one line: the last of a log is what is shown
        return error.exit_code
    try:
        threads = int(values.get("tokenizer_threads", 0))
        asyncio.run(serve(backend, host=given.host, port=given.port, model=given.model, tokenizer_threads=threads))
    except OSError as error:
        sys.stderr.write(f"error: cannot listen on {given.host}:{given.port}: {error}\n")
        return 3
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # threads inside a backend's library must not hold up the end
