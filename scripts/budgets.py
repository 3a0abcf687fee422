"""Fail where a file or a function has outgrown its budget: 400 and 50 lines."""

import ast
import sys
from pathlib import Path

FILE_LINES, FUNCTION_LINES = 400, 50


def over_budget(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    found = [f"{path}: {lines} lines, budget {FILE_LINES}"] if lines > FILE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES:
                found.append(f"{path}:{node.lineno} {node.name}: {length} lines, budget {FUNCTION_LINES}")
    return found


def main() -> int:
    found = [line for path in sorted(Path("src").rglob("*.py")) for line in over_budget(path)]
    print("\n".join(found) if found else "budgets: every file and function within its size")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
