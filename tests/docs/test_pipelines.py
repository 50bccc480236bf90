"""The pre-commit hooks and examples/ci/: each file is valid, and each of its commands runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
import yaml

from lbctl import __version__
from lbctl.cli import group, run
from lbctl.cli.schema import schema
from tests.support.paths import ROOT
from tests.support.processes.binaries import require

pytestmark = pytest.mark.e2e

CI = ROOT / "examples" / "ci"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
GIT = ("git", "-c", "user.name=ci", "-c", "user.email=ci@example.com", "-c", "init.defaultBranch=main")
TARGETS = ("nginx", "haproxy", "envoy")


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


class Repository:
    """A user's repository: `fleet/` and its rendered files in `rendered/`, committed and pushed to `origin`."""

    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self.directory, self.env = directory, dict(env)

    def __call__(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        process = subprocess.run(
            command, cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=100, check=False
        )
        assert process.returncode == 0 or not check, f"{command}: {process.stdout}{process.stderr}"
        return process

    def create(self) -> None:
        (self.directory / "fleet").mkdir(parents=True)
        shutil.copy(ROOT / "examples" / "quickstart.yaml", self.directory / "fleet" / "fleet.yaml")
        self.render()
        self(*GIT, "init", "-q")
        self.commit()
        self(*GIT, "clone", "-q", "--bare", ".", "../origin")
        self(*GIT, "remote", "add", "origin", "../origin")
        self(*GIT, "fetch", "-q", "origin")

    def render(self) -> None:
        for target in TARGETS:
            out = self.directory / "rendered" / target
            assert run(["render", "-t", target, "-d", str(out), str(self.directory / "fleet")]) == 0

    def commit(self) -> None:
        self(*GIT, "add", "-A")
        self(*GIT, "commit", "-q", "-m", "a fleet")

    def change(self, old: str, new: str) -> None:
        file = self.directory / "fleet" / "fleet.yaml"
        text = file.read_text(encoding="utf-8")
        assert old in text
        file.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home directory with lbctl and the user's repository, in which pip and apt-get only record their arguments."""
    home = tmp_path_factory.mktemp("home")
    commands = home / "bin"
    commands.mkdir()
    python = shlex.quote(sys.executable)
    shims = {
        "lbctl": f'PYTHONPATH={shlex.quote(str(ROOT))} exec {python} -m lbctl "$@"',
        "python": f'[ "$1 $2" = "-m pip" ] && echo "pip $*" >> "$HOME/asked" || exec {python} "$@"',
        "apt-get": 'echo "apt-get $*" >> "$HOME/asked"',
        "sudo": 'exec "$@"',
    }
    for name, line in shims.items():
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    Repository(home / "user", os.environ).create()
    return home


@pytest.fixture
def repository(home: Path, tmp_path: Path) -> Repository:
    for name in ("user", "origin"):
        shutil.copytree(home / name, tmp_path / name)
    path = os.pathsep.join([str(home / "bin"), os.environ["PATH"]])
    return Repository(tmp_path / "user", {**os.environ, "PATH": path, "HOME": str(tmp_path)})


def recorded_arguments(repository: Repository) -> str:
    """Return the recorded arguments of stubs, for example of pip and apt-get."""
    return (repository.directory.parent / "asked").read_text()


# ── GitHub ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Action:
    """Runs the steps of action.yml as a runner does.

    `output` and `codes` contain the output and exit code of each step.
    """

    def __init__(self, repository: Repository, base: str = "main", **given: str) -> None:
        self._file = read(CI / "action.yml")
        self._repository, self._temp = repository, repository.directory.parent / "runner"
        self._temp.mkdir(exist_ok=True)
        self.summary, self.outputs = self._temp / "summary", self._temp / "outputs"
        inputs = {name: item["default"] for name, item in self._file["inputs"].items()} | given
        self._words = {f"inputs.{name}": value for name, value in inputs.items()}
        self._words |= {"github.base_ref": base, "runner.temp": str(self._temp)}
        self.codes: dict[str, int] = {}
        self.output: dict[str, str] = {}

    def run(self, *names: str) -> dict[str, int]:
        """Run these steps, or every step, including those after a failed one. Return their exit codes."""
        own = {"GITHUB_STEP_SUMMARY": str(self.summary), "GITHUB_OUTPUT": str(self.outputs)}
        for step in self._file["runs"]["steps"]:
            if names and step["name"] not in names:
                continue
            assert (step["shell"], "${{" in step["run"]) == ("bash", False), "values come by variables alone"
            env = {name: self._filled(value) for name, value in step["env"].items()}
            process = subprocess.run(
                ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=self._repository.directory, env=self._repository.env | own | env,
                capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
            self.codes[step["name"]], self.output[step["name"]] = process.returncode, process.stdout + process.stderr
        return self.codes

    def _filled(self, value: str) -> str:
        while "${{" in value:
            value = re.sub(r"\$\{\{ ([a-z._-]+) \}\}", lambda match: self._words[match[1]], value)
        return value


COMMITTED_STEP = "Compare with the committed files"


def failed_steps(action: Action, *names: str) -> set[str]:
    """Run these steps, or every step, and return the names of the failed ones."""
    return {name for name, code in action.run(*names).items() if code}


def test_action_accepts_a_valid_change_and_describes_it(repository: Repository) -> None:
    for kind in TARGETS:
        require(kind)
    repository.change("gpu: L4", "gpu: H100-PCIe")
    repository.render()
    repository.commit()
    action = Action(repository, rendered="rendered")
    assert failed_steps(action) == set(), action.output
    assert "install --quiet lbctl[envoy] @ git+https://git.example.com/" in recorded_arguments(repository)
    assert f"lbctl {__version__}" in action.output["Install"]
    summary = action.summary.read_text()
    assert re.search(r"\| `\S*127\.0\.0\.1-9003\.gpu` \| `L4` \| `H100-PCIe` \| `fleet/fleet\.yaml:\d+` \|", summary)
    outputs = dict(line.split("=", 1) for line in action.outputs.read_text().splitlines())
    assert outputs.keys() == {"sarif", "comment"}
    assert json.loads(Path(outputs["sarif"]).read_text())["version"] == "2.1.0"
    assert Path(outputs["comment"]).read_text() == summary
    assert summary.startswith("**lbctl diff:** ")


def test_action_rejects_an_error_at_its_line(repository: Repository) -> None:
    repository.change("gpu: L4", "gpu: L4, weigth: 1")
    action = Action(repository, targets="haproxy")
    assert failed_steps(action) == {"Validate", "Lint", "Render and check"}
    assert re.search(r"^::error file=fleet/fleet\.yaml,line=\d+,col=\d+,title=LB011::", action.output["Validate"], re.M)
    assert action.summary.read_text() == "**lbctl diff:** no comparison with main: see the job log for the reason\n"
    assert "LB011" in action.output["Show the effect of the change"]


def test_action_detects_outdated_rendered_files(repository: Repository) -> None:
    repository.change("gpu: L4", "gpu: H100-PCIe")
    action = Action(repository, rendered="rendered", targets="nginx", base="")
    assert failed_steps(action) == {COMMITTED_STEP}
    output = action.output[COMMITTED_STEP]
    assert "rendered/nginx/nginx.conf" in output
    command = "lbctl render -t nginx -d rendered/nginx fleet && git add rendered/nginx"
    assert f"::error title=lbctl::rendered is out of date. Run this and commit: {command}" in output
    repository(*GIT, "checkout", "-q", "rendered")
    repository("bash", "-c", command)
    repository.commit()
    action = Action(repository, rendered="rendered", targets="nginx", base="")
    assert failed_steps(action, COMMITTED_STEP) == set()


TWO_ENVOYS = {"targets": "envoy:edge envoy:core", "rendered": "rendered", "base": ""}


def add_two_envoys(repository: Repository) -> None:
    """Add two proxies to the fleet, and commit their rendered files."""
    repository.change("pools:\n", "proxies: {edge: {kind: envoy}, core: {kind: envoy}}\npools:\n")
    for name in ("edge", "core"):
        repository("lbctl", "render", "-t", "envoy", "--proxy", name, "-d", f"rendered/{name}", "fleet")
    repository.commit()


@pytest.mark.slow
def test_action_renders_for_each_envoy(repository: Repository) -> None:
    require("envoy")
    add_two_envoys(repository)
    action = Action(repository, **TWO_ENVOYS)
    assert failed_steps(action) == set(), action.output
    assert action.output["Render and check"].count("accepted by envoy") == 2
    repository.change("gpu: L4", "gpu: H100-PCIe")
    action = Action(repository, **TWO_ENVOYS)
    assert failed_steps(action, COMMITTED_STEP) == {COMMITTED_STEP}
    assert re.findall(r"^diff --git a/(\S+)", action.output[COMMITTED_STEP], re.M) == [
        "rendered/core/envoy.yaml",
        "rendered/edge/envoy.yaml",
    ]
    commands = re.findall(r"^::error .*commit: (.*) && ", action.output[COMMITTED_STEP], re.M)
    assert commands == [f"lbctl render -t envoy --proxy {name} -d rendered/{name} fleet" for name in ("edge", "core")]


def test_action_explains_why_it_cannot_compare(repository: Repository) -> None:
    add_two_envoys(repository)
    action = Action(repository, **TWO_ENVOYS | {"targets": "envoy"})
    assert failed_steps(action, "Render and check", COMMITTED_STEP) == {"Render and check", COMMITTED_STEP}
    assert "choose one with --proxy" in action.output[COMMITTED_STEP]


def test_action_can_fail_for_warnings(repository: Repository) -> None:
    repository.change("  llama:\n", "  llama:\n    balance: {algorithm: random}\n")
    assert failed_steps(Action(repository), "Lint") == set()
    assert failed_steps(Action(repository, **{"fail-on": "warning"}), "Lint") == {"Lint"}


def test_workflow_uses_existing_inputs_and_outputs() -> None:
    job = read(CI / "workflow.yml")["jobs"]["lbctl"]
    used = next(step for step in job["steps"] if step.get("uses", "").startswith("./"))
    action = read(CI / "action.yml")
    assert set(used["with"]) <= set(action["inputs"])
    outputs = set(re.findall(r"steps\.lbctl\.outputs\.(\w+)", json.dumps(job)))
    assert outputs == set(action["outputs"])


def test_workflow_writes_one_comment_and_replaces_it(repository: Repository) -> None:
    """A stub of `gh` records its arguments and prints the existing comments."""
    job = read(CI / "workflow.yml")["jobs"]["lbctl"]
    step = next(step for step in job["steps"] if step.get("name") == "Comment")
    home = repository.directory.parent
    (home / "bin").mkdir()
    shim = home / "bin" / "gh"
    shim.write_text("""\
#!/bin/sh
case "$*" in
  *--paginate*) cat "$HOME/comments" ;;
  *) echo "$*" >> "$HOME/asked" ;;
esac
""")
    shim.chmod(0o755)
    (home / "body.md").write_text("**lbctl diff:** no difference\n")
    env = {
        "PATH": f"{home / 'bin'}{os.pathsep}{repository.env['PATH']}",
        "BODY": str(home / "body.md"),
        "ISSUES": "repos/me/fleet/issues",
        "NUMBER": "7",
    }
    for comments, request in (
        ("", "--method POST repos/me/fleet/issues/7/comments"),
        ("41\n", "--method PATCH repos/me/fleet/issues/comments/41"),
    ):
        (home / "comments").write_text(comments)
        subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=repository.directory, env=repository.env | env, check=True, timeout=100,
        )  # fmt: skip
        assert recorded_arguments(repository).splitlines()[-1] == f"api --silent {request} --field body=@comment.md"
    comment = (repository.directory / "comment.md").read_text()
    assert comment == "<!-- lbctl diff -->\n**lbctl diff:** no difference\n"
    assert job["steps"][-1] is step
    assert read(CI / "workflow.yml")["permissions"]["pull-requests"] == "write"


# ── GitLab ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def gitlab(repository: Repository, name: str, targets: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a job of gitlab-ci.yml as a runner does."""
    file = read(CI / "gitlab-ci.yml")
    job = file[file[name]["extends"]] | file[name]
    script = "\n".join(["set -eo pipefail", *job["before_script"], *job["script"]])
    own = {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "TARGETS": targets, **given}
    env = repository.env | {key: str(value) for key, value in file["variables"].items()} | own
    return subprocess.run(
        ["bash", "-c", script],
        cwd=repository.directory, env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_gitlab_jobs_accept_a_valid_change_and_describe_it(repository: Repository) -> None:
    require("nginx")
    repository.change("gpu: L4", "gpu: H100-PCIe")
    repository.render()
    repository.commit()
    for name in ("validate", "lint", "render", "diff"):
        process = gitlab(repository, name, "nginx")
        assert process.returncode == 0, process.stderr
    assert "9003" in process.stdout
    assert "9003" in (repository.directory / "lbctl-diff.md").read_text()
    assert "install --quiet lbctl[envoy] @ git+https://git.example.com/" in recorded_arguments(repository)
    assert "nginx-light haproxy" in recorded_arguments(repository)


def test_gitlab_lint_job_writes_a_code_quality_report(repository: Repository) -> None:
    repository.change("  llama:\n", "  llama:\n    balance: {algorithm: random}\n")
    assert gitlab(repository, "lint", "nginx").returncode == 0
    artifacts = read(CI / "gitlab-ci.yml")["lint"]["artifacts"]
    (finding,) = json.loads((repository.directory / artifacts["reports"]["codequality"]).read_text())
    assert (finding["severity"], finding["location"]["path"]) == ("major", "fleet/fleet.yaml")
    lines = (repository.directory / "fleet" / "fleet.yaml").read_text().splitlines()
    assert "random" in lines[finding["location"]["lines"]["begin"] - 1]


@pytest.mark.parametrize(
    ("notes", "request_line"),
    [
        ("[]", "POST /notes"),
        ('[{"id": 4, "body": "hello"}, {"id": 5, "body": "<!-- lbctl diff -->\\nold"}]', "PUT /notes/5"),
    ],
)
def test_gitlab_merge_request_has_one_comment(repository: Repository, notes: str, request_line: str) -> None:
    """curl sends its requests to a server with these notes."""
    requests: list[tuple[str, str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            requests.append((f"{self.command} {self.path}", self.headers["private-token"], body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(notes.encode())

        do_GET = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            """Log nothing."""

    repository.change("gpu: L4", "gpu: H100-PCIe")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        given = {"NOTES": f"http://127.0.0.1:{server.server_port}/notes", "LBCTL_COMMENT_TOKEN": "glpat-x"}
        process = gitlab(repository, "diff", "nginx", **given)
        server.shutdown()
    assert process.returncode == 0, process.stderr
    assert [item[:2] for item in requests] == [("GET /notes?per_page=100", "glpat-x"), (request_line, "glpat-x")]
    assert 'name="body"' in requests[1][2]
    comment = (repository.directory / "lbctl-diff.md").read_text()
    assert comment.startswith("<!-- lbctl diff -->\n**lbctl diff:** ")
    assert comment.splitlines()[-1] in requests[1][2]
    assert "glpat-x" not in process.stdout + process.stderr


def test_gitlab_jobs_reject_errors_and_outdated_files(repository: Repository) -> None:
    repository.change("gpu: L4", "gpu: H100-PCIe")
    repository.commit()
    process = gitlab(repository, "render", "haproxy")
    assert process.returncode == 1
    command = "lbctl render -t haproxy -d rendered/haproxy fleet && git add rendered/haproxy"
    assert process.stdout.endswith(f"rendered is out of date. Run this and commit:\n  {command}\n\n")
    repository.change("gpu: H100-PCIe", "gpu: H100-PCIe, weigth: 1")
    for name in ("validate", "lint", "render"):
        assert gitlab(repository, name, "haproxy").returncode == 1


@pytest.mark.nightly
def test_gitlab_renders_for_each_envoy(repository: Repository) -> None:
    require("envoy")
    add_two_envoys(repository)
    process = gitlab(repository, "render", "envoy:edge envoy:core")
    assert (process.returncode, process.stderr.count("accepted by envoy")) == (0, 2), process.stderr
    assert gitlab(repository, "render", "envoy").returncode == 64
    repository.change("gpu: L4", "gpu: H100-PCIe")
    process = gitlab(repository, "render", "envoy:core")
    assert process.returncode == 1
    assert "rendered/core/envoy.yaml" in process.stdout


# ── pre-commit ───────────────────────────────────────────────────────────────────────────────────────────────────────


def pre_commit(repository: Repository) -> subprocess.CompletedProcess[str]:
    repository(*GIT, "add", "-A")
    return repository("pre-commit", "run", "--all-files", check=False)


@pytest.fixture
def hooked(repository: Repository, tmp_path: Path) -> Repository:
    """A repository with the sample configuration and a clone of the hooks, which use the installed lbctl.

    `language: python` would install lbctl from the network first.
    """
    source = tmp_path / "lbctl"
    source.mkdir()
    shutil.copy(HOOKS, source)
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "hooks"), ("tag", f"v{__version__}")):
        subprocess.run([*GIT, *command], cwd=source, check=True, timeout=100)
    config = read(CI / "pre-commit-config.yaml")
    config["repos"][0]["repo"] = str(source)
    for hook in config["repos"][0]["hooks"]:
        hook["language"] = "system"
    (repository.directory / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    repository.env |= {"PRE_COMMIT_HOME": str(tmp_path / "pre-commit"), "SKIP": ""}
    repository.env["PATH"] += os.pathsep + str(Path(sys.executable).parent)
    return repository


def test_hooks_reject_an_error_and_show_it(hooked: Repository) -> None:
    hooked.change("gpu: L4", "gpu: L4, weigth: 1")
    process = pre_commit(hooked)
    assert process.returncode == 1
    assert re.search(r"fleet/fleet\.yaml:\d+:\d+: error LB011", process.stdout)
    assert process.stdout.count("Failed") == 4


def test_hooks_render_outdated_files_and_fail_once(hooked: Repository) -> None:
    hooked.change("gpu: L4", "gpu: H100-PCIe")
    process = pre_commit(hooked)
    assert process.returncode == 1
    assert process.stdout.count("files were modified by this hook") == 2
    process = pre_commit(hooked)
    assert process.returncode == 0
    assert process.stdout.count("Passed") == 4


def test_hook_runs_an_existing_command() -> None:
    known = group.list_commands(click.Context(group))
    for hook in read(HOOKS):
        program, command = hook["entry"].split()
        assert (program, hook["id"], hook["language"]) == ("lbctl", f"lbctl-{command}", "python")
        assert command in known


# ── Contents of the files ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "package",
    [
        read(CI / "action.yml")["inputs"]["package"]["default"],
        read(CI / "workflow.yml")["jobs"]["lbctl"]["steps"][2]["with"]["package"],
        read(CI / "gitlab-ci.yml")["variables"]["PACKAGE"],
    ],
)
def test_lbctl_is_installed_by_url_and_not_by_name(package: str) -> None:
    """pip then fails instead of installing a foreign package with this name."""
    url = read(CI / "pre-commit-config.yaml")["repos"][0]["repo"]
    assert package == f"lbctl[envoy] @ git+{url}@v{__version__}"


@pytest.mark.parametrize(
    ("kind", "name"),
    [("github-actions", "action.yml"), ("github-workflows", "workflow.yml"), ("gitlab-ci", "gitlab-ci.yml")],
)
def test_pipeline_file_is_valid_by_its_schema(kind: str, name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{kind}", str(CI / name)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stdout
    assert (CI / name).read_text(encoding="utf-8").startswith("# ")


def test_pre_commit_accepts_the_hooks_and_the_configuration() -> None:
    for command, file in (("validate-manifest", HOOKS), ("validate-config", CI / "pre-commit-config.yaml")):
        subprocess.run([sys.executable, "-m", "pre_commit", command, str(file)], check=True, timeout=60)


# ── Editors ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MODELINE = re.compile(r"# yaml-language-server: \$schema=(\S+)")


EXAMPLES = sorted({*(ROOT / "examples").rglob("*.yaml")} - {*CI.iterdir(), *(ROOT / "examples" / "keys").iterdir()})
QUICKSTART = ROOT / "examples" / "quickstart.yaml"
"""README.md shows it without a schema line."""


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path != QUICKSTART], ids=lambda path: path.stem)
def test_example_names_its_schema_for_editors(path: Path) -> None:
    """Relative paths start at the file, as for yaml-language-server."""
    named = [match[1] for line in path.read_text(encoding="utf-8").splitlines() if (match := MODELINE.fullmatch(line))]
    assert len(named) == 1
    assert (path.parent / named[0]).resolve() == ROOT / "schemas" / "lbctl.schema.json"
    jsonschema.Draft7Validator(schema()).validate(read(path))
