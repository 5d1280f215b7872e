# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever a value holds, it reaches the engine as it was written: through the module, the role's unit and systemd."""

from __future__ import annotations

import base64
import json
import os
import shlex
import typing as t
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if t.TYPE_CHECKING:
    from molecule.conftest import Operator

UNIT = "vllm-echo.service"
TELLING = "/srv/bench/probe/telling_engine.py"
CREDENTIAL = f"/run/credentials/{UNIT}/engine.yaml"
MANY = 40
# What systemd and the unit themselves tell an engine.
OF_THE_UNIT = {
    "CACHE_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "HOME",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LANG",
    "LC_CTYPE",
    "LOGNAME",
    "MEMORY_PRESSURE_WATCH",
    "MEMORY_PRESSURE_WRITE",
    "PATH",
    "RUNTIME_DIRECTORY",
    "SHELL",
    "STATE_DIRECTORY",
    "SYSTEMD_EXEC_PID",
    "TRITON_CACHE_DIR",
    "USER",
    "VLLM_CACHE_ROOT",
    "XDG_CACHE_HOME",
}

FRAGMENTS = st.sampled_from(
    [*" \t\n\r\\\"'`%$#;={}[]:,&*!|>?@-~", "%i", "%s", "%z", "%%", "%h", "$HOME", "${HOME}", "$$", "${X}", "$(id)", "\\n", "\\\n", "\\x41",
     "\\u0041", '{"a": "b"}', "{{ x }}", "{% if x %}", "re:.*mlp$", r"^(?!.*\.bias$)", "'it''s'", "\x1b[1m", "\x85", "\u2028", "\u2029",
     "\ufeff", "\u00a0", "\U0001f600", "\U0010fffd", "e\u0301", "\u202e", "true", "null", "0x10", "1e3", "~", "<<", "---", "&&", ">>"]
)  # fmt: skip
CHARACTERS = st.characters(codec="utf-8", exclude_categories=["Cn"], exclude_characters="\0")
TEXT = st.lists(FRAGMENTS | CHARACTERS, max_size=10).map("".join)
LONG = st.builds(lambda text, times: text * times, TEXT, st.integers(100, 600))
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
# A first dash is refused, where it is no number's.
WORDS = (TEXT | LONG).filter(lambda text: not text.startswith("-"))
INNER = st.recursive(
    TEXT | NUMBERS | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
VALUES = WORDS | st.integers() | st.floats(0, allow_infinity=False) | st.booleans() | st.none()
ARGUMENTS = VALUES | st.lists(WORDS | st.integers() | st.dictionaries(TEXT, INNER, max_size=2), min_size=1, max_size=4)
ARGUMENTS |= st.dictionaries(TEXT, INNER, min_size=1, max_size=4)
FOLDER = st.lists(FRAGMENTS, max_size=6).map("".join).map(lambda text: text.encode()[:80].decode("utf-8", "ignore").replace("/", "_"))
# What is known to break lines that are written without care.
KNOWN = ['{"method":"mtp","num_speculative_tokens":3}', "pa%sword", "ab%zcd", '{"a":"%z"}', "{%if x%}", "re:.*mlp$", "price$HOME", "a$b"]
KNOWN += ["8000 >> /var/log/vllm.log 2>&1", "ends in a backslash\\", "\n\nblank lines\n\n", " blanks ", "#", ";x", '"', "'"]

Values = dict[str, t.Any]


def numbered(prefix: str, values: t.Sequence[t.Any]) -> Values:
    return {f"{prefix}{number}": value for number, value in enumerate(values)}


RELEASES = st.fixed_dictionaries(
    {
        "model_path": FOLDER.map(lambda name: f"/srv/models/{name}x"),
        "engine_path": FOLDER.map(lambda name: f"/opt/gpufleet/engines/e{name.replace(':', '.')}x"),
        "arguments": st.lists(ARGUMENTS, min_size=MANY, max_size=MANY).map(lambda values: numbered("option-", [*KNOWN, *values])),
        "environment": st.lists(WORDS | TEXT | NUMBERS, min_size=MANY, max_size=MANY).map(lambda values: numbered("V_", [*KNOWN, *values])),
    }
)


def shown(value: t.Any) -> str:
    """JSON, in which the order of a map's keys means nothing."""
    return json.dumps(value, sort_keys=True)


def command_line(arguments: Values) -> list[list[str]]:
    """The words of each option, as somebody would write them for `vllm serve` in a shell."""
    options = []
    for name, value in sorted(arguments.items()):
        if value is False:
            options.append([f"--no-{name}"])
        elif value is True:
            options.append([f"--{name}"])
        elif isinstance(value, list):
            options.append([f"--{name}", *(shown(item) if isinstance(item, dict) else str(item) for item in value)])
        elif value is not None:
            options.append([f"--{name}", shown(value) if isinstance(value, dict) else str(value)])
    return options


def read_by_vllm(config: str) -> list[list[str]]:
    """The words that vLLM makes of its configuration file: flags of true, a word for each item of a list, JSON of a map."""
    options = []
    for name, value in yaml.safe_load(config).items():
        words = value if isinstance(value, list) else [shown(value)] if isinstance(value, dict) else [value]
        options.append([f"--{name}"] if value is True else [f"--{name}", *map(str, words)])
    return options


def tell(host: t.Any, engine_path: str) -> dict[str, t.Any]:
    """What reached the program after a start, each word in bytes."""
    program = shlex.quote(f"{engine_path}/bin")
    host.check_output(f"mkdir -p {program} && ln -sfn {TELLING} {program}/vllm && systemctl reset-failed {UNIT}; systemctl restart {UNIT}")
    invocation = host.check_output(f"systemctl show -P InvocationID {UNIT}")
    told = host.check_output(
        f"cd /var/lib/gpufleet/echo && timeout 20 sh -c 'until grep -qs {invocation} arrived.json; do sleep 0.05; done' && cat arrived.json"
    )
    parts = json.loads(told)
    decoded = {name: [base64.b64decode(word) for word in parts[name]] for name in ("argv", "environment")}
    return {**decoded, "config": base64.b64decode(parts["config"])}


def broken(told: dict[str, t.Any], values: Values) -> list[tuple[str, t.Any, t.Any]]:
    """What did not arrive as it was written: its name, what it was to be, what it is."""
    argv = [f"{values['engine_path']}/bin/vllm", "serve", values["model_path"], "--config", CREDENTIAL]
    variables = dict(variable.split(b"=", 1) for variable in told["environment"])
    environment = {name: value for name, value in variables.items() if name.decode() not in OF_THE_UNIT}
    wanted = {name.encode(): str(value).encode() for name, value in values["environment"].items()}
    options, arrived = command_line(values["arguments"]), read_by_vllm(told["config"].decode())
    names = sorted({*wanted, *environment})
    compared = [
        ("argv", [word.encode() for word in argv], told["argv"]),
        *((name.decode(), wanted.get(name), environment.get(name)) for name in names),
        *((option[0], option, words) for option, words in zip_longest(options, arrived, fillvalue=["none"])),
    ]
    return [each for each in compared if each[1] != each[2]]


@pytest.fixture(scope="module", autouse=True)
def _silence_afterwards(operator: Operator) -> t.Iterator[None]:
    yield
    operator.on_all(f"systemctl stop {UNIT}")


@settings(
    max_examples=1 if os.environ.get("GPUFLEET_SAMPLE") else 3,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(values=RELEASES)
def test_arguments_environment_and_paths_arrive_byte_for_byte(operator: Operator, values: Values) -> None:
    given_values = operator.folder / "values.json"
    given_values.write_text(json.dumps(values))
    made = operator.play(str(operator.root / "molecule" / "unit" / "release"), variables={"values_file": str(given_values)})
    assert made.status == 0
    with ThreadPoolExecutor() as pool:
        arrived = list(pool.map(lambda host: tell(host, values["engine_path"]), operator.hosts.values()))
    assert [broken(told, values) for told in arrived] == [[]] * len(arrived)


NAIVE = {
    "quotes": """ExecStart={telling} --speculative-config {"method":"mtp","num_speculative_tokens":3}""",
    "shell": "Environment=API_KEY=pa%sword\nExecStart={telling}",
    "unknown": "Environment=API_KEY=ab%zcd\nExecStart={telling}",
    "refused": """ExecStart={telling} --hf-overrides '{"a":"%z"}'""",
    "instance": "ExecStart={telling} --chat-template {%if x%}",
    "dollar": "Environment=HOME=/h\nExecStart={telling} re:.*mlp$ 'price${HOME}' $HOME price$$HOME",
    "blank": "ExecStart={telling} serve /srv/models/a \\\n    --port 8000 \\\n\n    --max-model-len 4096",
    "redirection": "ExecStart={telling} --port 8000 >> /var/log/vllm.log 2>&1",
    "noncharacter": "EnvironmentFile=/run/naive/environment\nExecStart={telling}",
}


def start_naive_units(host: t.Any) -> None:
    """A unit for each of the lines, all started once; a program that is reached tells into /run/naive."""
    units = {
        f"/run/systemd/system/naive-{name}.service": f"[Service]\nType=oneshot\nEnvironment=TELL_TO=/run/naive/{name}\n{lines}\n"
        for name, lines in NAIVE.items()
    }
    write = [f"printf %s {shlex.quote(text.replace('{telling}', TELLING))} > {path}" for path, text in units.items()]
    start = [f"systemctl start naive-{name}.service || true" for name in NAIVE]
    prepare = ["mkdir -p /run/naive", "printf 'A=\"\\357\\277\\276\"\\n' > /run/naive/environment"]
    host.check_output("; ".join([*prepare, *write, "systemctl daemon-reload", *start]))


def reached(host: t.Any, name: str) -> t.Optional[tuple[list[str], t.Optional[str]]]:
    """The arguments and the API_KEY that the program got; None where systemd did not start it."""
    found = host.run(f"cat /run/naive/{name}")
    if found.rc != 0:
        return None
    told = json.loads(found.stdout)
    words = [base64.b64decode(word).decode() for word in told["argv"]]
    variables = dict(base64.b64decode(word).decode().split("=", 1) for word in told["environment"])
    return words[1:], variables.get("API_KEY")


def test_lines_written_without_care_break_on_this_systemd(host: t.Any) -> None:
    """So that the test above is known to look for something."""
    try:
        start_naive_units(host)
        found = {name: reached(host, name) for name in NAIVE}
    finally:
        host.check_output("rm -rf /run/naive /run/systemd/system/naive-*.service && systemctl daemon-reload")
        host.run("systemctl reset-failed 'naive-*'")
    assert found == {
        "quotes": (["--speculative-config", "{method:mtp,num_speculative_tokens:3}"], None),
        "shell": ([], "pa/bin/bashword"),
        "unknown": ([], None),
        "refused": None,
        "instance": (["--chat-template", "{f", "x%}"], None),
        "dollar": (["re:.*mlp$", "price/h", "/h", "price$HOME"], None),
        "blank": (["serve", "/srv/models/a", "--port", "8000"], None),
        "redirection": (["--port", "8000", ">>", "/var/log/vllm.log", "2>&1"], None),
        "noncharacter": None,
    }
