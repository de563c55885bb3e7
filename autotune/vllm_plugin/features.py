"""What every feature of the plugin shares: its state, and how it waits for the part of vLLM it changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Literal, Protocol

from autotune.client import RoutingClient
from autotune.vllm_plugin.deployment import Deployment, Layer
from autotune.vllm_plugin.imports import forget, when_imported
from autotune.vllm_plugin.log import info_once, warn_once
from autotune.vllm_plugin.patching import Patch, Replacement
from autotune.vllm_plugin.surface import SurfaceChangedError

FeatureState = Literal["applied", "waiting", "disabled"]


class RankAgreement(Protocol):
    """What other features ask of the comparison between ranks."""

    def require(self) -> None:
        """Take every feature off if there are several ranks that have not been found alike."""
        ...


class LayerRouter(Protocol):
    """What other features ask of the router."""

    def refusal(self, layer: Layer) -> str:
        """Why a layer's calls are not routed, as far as its configuration tells; empty if they may be."""
        ...


@dataclass
class Context:
    """What the features of one process work with.

    Args:
        observe: log what would be done and leave vLLM unchanged.
        router: routes each call of a layer, where the mode has that.
        ranks: knows whether all ranks decide alike.
    """

    client: RoutingClient
    deployment: Deployment
    observe: bool = False
    router: LayerRouter | None = None
    ranks: RankAgreement | None = None


class DeclinedError(Exception):
    """A setting of the user rules the feature out; the message says which."""


class Feature(ABC):
    """One change to one module of vLLM.

    `state` is `waiting` until vLLM imports that module, then `applied`, or `disabled` with `reason`.
    """

    name: str
    title: str
    module: str

    def __init__(self, context: Context) -> None:
        self.context = context
        self.state: FeatureState = "disabled"
        self.reason = "not installed"
        self._patches: Sequence[Patch | Replacement] = []

    @abstractmethod
    def patches(self, module: ModuleType) -> Sequence[Patch | Replacement]:
        """The replacements to make in the imported module.

        Raises:
            SurfaceChangedError: if vLLM differs from what is needed.
            DeclinedError: if a setting rules the feature out.
        """

    def install(self) -> None:
        """Apply now, or when vLLM imports the module."""
        self.state, self.reason = "waiting", f"for vLLM to import {self.module}"
        when_imported(self.module, self._on_import)

    def unapply(self) -> None:
        """Leave vLLM as it was found."""
        forget(self._on_import)
        for patch in reversed(self._patches):
            patch.unapply()
        self._patches = []
        self.state, self.reason = "disabled", "taken off"

    def take_off(self, reason: str) -> None:
        """Take the feature off; the caller says why."""
        self.unapply()
        self.state, self.reason = "disabled", reason

    def disable(self, reason: str) -> None:
        """Take the feature off and say why, once."""
        self.take_off(reason)
        warn_once(f"{self.title} disabled, vLLM's own behaviour stays: {reason}")

    def _on_import(self, module: ModuleType) -> None:
        try:
            self._patches = self.patches(module)
            for patch in self._patches:
                patch.apply()
        except SurfaceChangedError as error:
            self.disable(f"this vLLM differs from what is needed: {error}")
        except DeclinedError as error:
            self.disable(str(error))
        except Exception as error:
            # Raising here would fail vLLM's own import.
            self.disable(f"{type(error).__name__}: {error}")
        else:
            self.state, self.reason = "applied", ""
            for patch in self._patches:
                if isinstance(patch, Patch) and patch.found:
                    info_once(f"{patch} is already replaced by {patch.found}: each calls what it found")
