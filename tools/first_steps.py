"""The first steps with an installed fieldwise, in an empty folder: `python -P tools/first_steps.py [ROWS]`.

Runs `demo`, a study, a recipe by name and `serve` with the fieldwise that this Python has, which must not be the
repository's own.
"""

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent


def main(rows: int) -> None:
    import fieldwise

    where = Path(fieldwise.__file__).resolve()
    if where.is_relative_to(ROOT / "fieldwise"):
        sys.exit(f"this is the repository's own fieldwise ({where}), and a wheel's is to be tried")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        command("demo", "--rows", str(rows), "--out", "demo", "--json")
        command("study", "fig8", "--json")
        command("train", "demo/data", "--config", "recipes/frappe/fm.toml", "--set", "train.epochs=1", "--out", "fm")
        serve("demo/pin", "demo/test.csv")
        os.chdir(ROOT)
    print(f"demo, study, train and serve: well ({where.parent})")


def command(*arguments: str) -> None:
    """Runs a command in this process: loading torch once is enough."""
    from fieldwise import cli

    try:
        cli.main(list(arguments))
    except SystemExit as end:
        if end.code:
            sys.exit(f"fieldwise {' '.join(arguments)}: exit code {end.code}")


def serve(bundle: str, log: str) -> None:
    """Starts a server, asks it for a row of `log` and for its page, and stops it."""
    with Path(log).open(encoding="utf-8", newline="") as file:
        row = next(csv.DictReader(file))
        del row["click"]
    started = [sys.executable, "-P", "-m", "fieldwise", "serve", bundle, "--port", "0", "--log", "none"]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said, address = "", None
            while not address:
                line = process.stdout.readline()
                said += line
                if not line:
                    sys.exit(f"serve ended: {said}")
                address = re.search(r"http://127\.0\.0\.1:\d+", line)
            asked = Request(f"{address[0]}/predict", json.dumps({"rows": [row]}).encode())
            asked.add_header("content-type", "application/json")
            with urlopen(asked) as answer, urlopen(address[0]) as page:
                found = json.load(answer)
                if not 0 < found["probabilities"][0] < 1 or b"<title>" not in page.read():
                    sys.exit(f"serve answered {found}")
        finally:
            process.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5000)
