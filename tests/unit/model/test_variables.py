"""The variables of options: every option has one, and what means the same for several commands has one for all."""

from __future__ import annotations

import pytest

from tests.docs.cli_page import contexts, variables

REMOTE = ("diff", "picker", "reload", "status", "top", "explain pick", "explain weight", "drain", "undrain",
          "weight set", "weight unset", "freeze", "unfreeze", "split set", "split unset", "rollout abort",
          "rollout pause", "rollout promote", "rollout resume", "rollout set", "rollout start", "rollout status",
          "history", "rollback", "audit show", "audit verify", "bootstrap", "xds get", "xds watch",
          "doctor")  # fmt: skip
OF_XDS = ("bootstrap", "xds get", "xds watch")
"""Commands whose `--tls-ca` is that of xDS."""


def test_every_option_has_a_variable_and_none_stands_for_two_options() -> None:
    found = variables(contexts())
    options = [
        (context.command_path, option.opts)
        for context in contexts()
        for option in context.command.params
        if option.param_type_name == "option" and not {"--help", "--version"} & set(option.opts)
    ]
    assert sum(map(len, found.values())) == len(options)
    names = [variable for variable, _ in found]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("option", ["server", "token-file", "fleet", "tls-ca"])
def test_all_commands_that_talk_to_a_running_serve_have_one_variable_for_it(option: str) -> None:
    commands = [name for name in REMOTE if option != "tls-ca" or name not in OF_XDS]
    assert variables(contexts())[f"LBCTL_{option}".upper().replace("-", "_"), f"--{option}"] == commands


def test_what_is_said_of_xds_is_said_apart_from_the_api() -> None:
    found = variables(contexts())
    for variable, option in (("LBCTL_XDS", "--xds"), ("LBCTL_XDS_NODE", "--node"), ("LBCTL_XDS_TLS_CA", "--tls-ca")):
        assert found[variable, option] == list(OF_XDS)
