"""What a member tells of the control plane as it happens."""

from __future__ import annotations

from typing import Protocol


class MemberNews(Protocol):
    """Who is told."""

    def role_changed(self, member: str, role: str, epoch: int) -> None:
        """Tell that this member has another role, and the epoch in which it leads or has led last."""

    def store_changed(self, member: str, problem: str) -> None:
        """Tell that the store cannot be used, and why; empty: it answers again."""

    def files_differ(self, members: tuple[str, ...]) -> None:
        """Tell which members have other files than the leader now."""

    def pools_shared(self, members: tuple[str, ...], pools: tuple[str, ...]) -> None:
        """Tell among whom the pools are shared now, and which of them are this member's."""
