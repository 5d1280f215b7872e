# Copyright (c) 2026, The gpufleet.vllm contributors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of ``vllm serve``: options of 0.33, ``--config`` as vLLM reads it, argparse's own words on a mistake."""

from __future__ import annotations

import argparse
import json
import sys
import typing as t
from pathlib import Path

__all__ = ["Options", "non_default", "parse"]

Options = argparse.Namespace

_USAGE = """usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ...
"""

_TEXT = (
    "model all2all-backend attention-backend block-size chat-template chat-template-content-format code-revision config-format "
    "data-parallel-address data-parallel-backend disable-access-log-for-endpoints distributed-executor-backend download-dir dtype "
    "fingerprint-mode generation-config hf-token host kv-cache-dtype linear-backend load-format log-level master-addr mm-encoder-tp-mode "
    "moe-backend quantization reasoning-parser reasoning-parser-plugin revision root-path runner safetensors-load-strategy ssl-ca-certs "
    "ssl-certfile ssl-ciphers ssl-keyfile tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin uds "
    "uvicorn-log-level performance-mode spec-method spec-model device-ids"
)
_INTEGER = (
    "port tensor-parallel-size pipeline-parallel-size data-parallel-size data-parallel-size-local data-parallel-rank "
    "data-parallel-rpc-port decode-context-parallel-size max-num-seqs max-num-batched-tokens num-gpu-blocks-override seed nnodes "
    "node-rank master-port shutdown-timeout max-num-queued-reqs max-num-queued-tokens max-cudagraph-capture-size optimization-level "
    "api-server-count ssl-cert-reqs max-logprobs stream-interval distributed-timeout-seconds spec-tokens max-loras max-lora-rank"
)
_NUMBER = "gpu-memory-utilization cpu-offload-gb swap-space kv-offloading-size mm-processor-cache-gb"
_SIZE = "max-model-len kv-cache-memory-bytes"
_JSON = (
    "compilation-config speculative-config hf-overrides model-loader-extra-config limit-mm-per-prompt logging-config watchdog-config "
    "kv-transfer-config override-generation-config default-chat-template-kwargs mm-processor-kwargs eplb-config kernel-config"
)
_LIST = "served-model-name api-key cudagraph-capture-sizes allowed-origins lora-modules"
_FLAG = (
    "trust-remote-code enforce-eager enable-expert-parallel enable-auto-tool-choice enable-prefix-caching enable-chunked-prefill "
    "async-scheduling disable-custom-all-reduce disable-uvicorn-access-log enable-log-requests disable-log-stats enable-sleep-mode "
    "enable-server-load-tracking enable-tokenizer-info-endpoint enable-request-id-headers disable-fastapi-docs headless "
    "enable-fault-tolerance fail-on-environ-validation enable-ssl-refresh enable-lora language-model-only enable-flashinfer-autotune "
    "data-parallel-hybrid-lb data-parallel-external-lb numa-bind enable-eplb enable-cumem-allocator allow-deprecated-quantization "
    "return-tokens-as-token-ids enable-prompt-tokens-details calculate-kv-scales skip-tokenizer-init"
)
_SHORT = {"tensor-parallel-size": "-tp", "pipeline-parallel-size": "-pp", "data-parallel-size": "-dp", "quantization": "-q", "nnodes": "-n"}
_DEFAULTS: dict[str, t.Any] = {
    "port": 8000,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "gpu_memory_utilization": 0.92,
    "shutdown_timeout": 0,
    "load_format": "auto",
    "root_path": "",
    "disable_access_log_for_endpoints": "",
    "seed": 0,
}


class _Parser(argparse.ArgumentParser):
    """vLLM's usage text is the one of its top command, whatever was wrong; the exit status is 2."""

    def error(self, message: str) -> t.NoReturn:
        sys.stderr.write(f"{_USAGE}vllm: error: {message}\n")
        raise SystemExit(2)


def parse(argv: t.Sequence[str]) -> Options:
    """The options of ``vllm serve`` in ``argv`` (without ``serve``), the file named by ``--config`` included."""
    arguments = [_dashed(word) for word in _with_config(list(argv))]
    options, unknown = _parser().parse_known_args(arguments)
    unknown = _dotted(options, unknown)
    if unknown:
        _Parser().error(f"unrecognized arguments: {' '.join(unknown)}")
    options.model = options.model_tag or options.model or "Qwen/Qwen3-0.6B"
    return options


def non_default(options: Options) -> dict[str, t.Any]:
    """What the log shows of the options, keys hidden."""
    shown = {name: value for name, value in vars(options).items() if value not in (None, _DEFAULTS.get(name), False)}
    if "api_key" in shown:
        shown["api_key"] = ["***"]
    return shown


def _parser() -> _Parser:
    parser = _Parser(prog="vllm serve", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for names, kind in ((_TEXT, str), (_INTEGER, int), (_NUMBER, float), (_SIZE, _human_size), (_JSON, _json)):
        for name in names.split():
            parser.add_argument(*_spellings(name), type=kind, default=_DEFAULTS.get(name.replace("-", "_")))
    for name in _LIST.split():
        parser.add_argument(f"--{name}", nargs="+")
    for name in _FLAG.split():
        _add_flag(parser, name)
    return parser


def _spellings(name: str) -> list[str]:
    extra = {"gpu-memory-utilization": ["--device-memory-utilization"], "speculative-config": ["-sc"], "compilation-config": ["-cc"]}
    return [f"--{name}", *([_SHORT[name]] if name in _SHORT else []), *extra.get(name, [])]


def _add_flag(parser: _Parser, name: str) -> None:
    parser.add_argument(f"--{name}", action="store_true", default=None)
    opposite = name.replace("enable-", "disable-", 1) if name.startswith("enable-") else name.replace("disable-", "enable-", 1)
    off = [f"--no-{name}", *([f"--{opposite}"] if opposite != name else [])]
    parser.add_argument(*off, dest=name.replace("-", "_"), action="store_false", default=None)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, separator, value = word.partition("=")
    return name.replace("_", "-") + separator + value


def _human_size(text: str) -> int:
    if text == "auto":
        return -1
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    try:
        return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid human_readable_int_or_auto value: {text!r}") from None


def _json(text: str) -> t.Any:
    try:
        return json.loads(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from None


def _dotted(options: Options, unknown: list[str]) -> list[str]:
    """Take ``--speculative-config.method mtp`` into its JSON option; answer with what is left."""
    left: list[str] = []
    words = iter(unknown)
    for word in words:
        name, _dot, key = word.lstrip("-").partition(".")
        if word.startswith("--") and key and name in _JSON.split():
            target = getattr(options, name.replace("-", "_")) or {}
            target[key.replace("-", "_")] = next(words, "")
            setattr(options, name.replace("-", "_"), target)
        else:
            left.append(word)
    return left


def _with_config(argv: list[str]) -> list[str]:
    """``argv`` with the file's options put before it, so that the command line wins. ``--config=FILE`` is ignored, as by vLLM."""
    argv = [word for word in argv if not word.startswith("--config=")]
    if "--config" not in argv:
        return argv
    if argv.count("--config") > 1:
        raise ValueError("More than one config file specified!")
    place = argv.index("--config")
    path = argv[place + 1]
    if not path.endswith((".yaml", ".yml")):
        raise ValueError(f"Config file must be of a yaml/yml type. {path} provided")
    positional = [word for word in argv[:1] if not word.startswith("-")]
    rest = argv[len(positional) : place] + argv[place + 2 :]
    return positional + _file_arguments(Path(path).read_text(encoding="utf-8")) + rest


def _file_arguments(text: str) -> list[str]:
    arguments: list[str] = []
    for key, value in _read_yaml(text).items():
        if value is True:
            arguments.append(f"--{key}")
        elif isinstance(value, list):
            arguments += [f"--{key}", *(str(item) for item in value)]
        elif isinstance(value, dict):
            arguments += [f"--{key}", json.dumps(value)]
        elif value is not False:
            arguments += [f"--{key}", str(value)]
    return arguments


def _read_yaml(text: str) -> dict[str, t.Any]:
    """The part of YAML that is needed: one ``key: value`` a line, the value as JSON or a plain word."""
    if text.lstrip().startswith("{"):
        return dict(json.loads(text))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#") and line.strip() != "---"]
    if not lines:
        raise AttributeError("'NoneType' object has no attribute 'items'")
    values: dict[str, t.Any] = {}
    for line in lines:
        key, separator, value = line.partition(":")
        if not separator or line[:1].isspace():
            raise ValueError(f"config file: only 'key: value' lines are read here, not {line!r}")
        values[key.strip().strip("\"'")] = _scalar(value.strip())
    return values


def _scalar(value: str) -> t.Any:
    try:
        return json.loads(value)
    except ValueError:
        return {"": None, "True": True, "False": False}.get(value, value)
