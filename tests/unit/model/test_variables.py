"""Environment variables of options: every option has one, and options with one meaning share it."""

from __future__ import annotations

import pytest

from lbctl.cli.help import variables
from tests.docs.cli_page import contexts

REMOTE = ("diff", "bootstrap", "picker", "reload", "drain", "undrain", "weight set", "weight unset", "freeze",
          "unfreeze", "split set", "split unset", "rollout abort", "rollout pause", "rollout promote",
          "rollout resume", "rollout set", "rollout start", "rollout status", "history", "rollback", "status", "top",
          "explain pick", "explain weight", "audit show", "audit verify", "xds get", "xds watch",
          "doctor")  # fmt: skip
OF_XDS = ("bootstrap", "xds get", "xds watch")
"""Commands whose `--tls-ca` is for xDS."""


def test_every_option_has_its_own_variable() -> None:
    variables_of_options = variables(contexts())
    options = [
        (context.command_path, option.opts)
        for context in contexts()
        for option in context.command.params
        if option.param_type_name == "option" and not {"--help", "--version"} & set(option.opts)
    ]
    assert sum(map(len, variables_of_options.values())) == len(options)
    names = [variable for variable, _ in variables_of_options]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("option", ["server", "token-file", "fleet", "tls-ca"])
def test_remote_commands_share_their_variables(option: str) -> None:
    commands = [name for name in REMOTE if option != "tls-ca" or name not in OF_XDS]
    assert variables(contexts())[f"LBCTL_{option}".upper().replace("-", "_"), f"--{option}"] == commands


def test_xds_commands_have_separate_variables() -> None:
    variables_of_options = variables(contexts())
    for variable, option in (("LBCTL_XDS", "--xds"), ("LBCTL_XDS_NODE", "--node"), ("LBCTL_XDS_TLS_CA", "--tls-ca")):
        assert variables_of_options[variable, option] == list(OF_XDS)
