#!/usr/bin/env python3
"""Cuts README's code blocks from the files that the comment before each names, so that they compile.

With --check it changes nothing and exits with 1 if a block is not what its file says.
"""

import pathlib
import re
import sys

BLOCK = re.compile(r"<!-- (\S+) -->\n```(cpp|python)\n(.*?)```\n", re.DOTALL)


def updated(root, text):
    def block(match):
        lines = (root / match[1]).read_text().splitlines(keepends=True)
        code = "".join(line for line in lines if not line.startswith(("// ", "# ")))
        return f"<!-- {match[1]} -->\n```{match[2]}\n{code}```\n"

    return BLOCK.sub(block, text)


def main():
    root = pathlib.Path(__file__).resolve().parents[1]
    readme = root / "README.md"
    text = readme.read_text()
    wanted = updated(root, text)
    if "--check" not in sys.argv:
        readme.write_text(wanted)
    elif wanted != text:
        sys.exit("README.md: a code block is not what its file says; run tools/update_readme.py")


if __name__ == "__main__":
    main()
