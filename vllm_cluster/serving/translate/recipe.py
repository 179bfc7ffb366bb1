"""A recipe of vLLM's book as one command line: its variant and its strategy that suit the hosts, with their flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.words import nearest
from vllm_cluster.kernel.shell_line import shell_line
from vllm_cluster.kernel.text import count, printable
from vllm_cluster.serving.translate.found import ServeWords
from vllm_cluster.serving.translate.node import YamlNode
from vllm_cluster.serving.translate.options import TranslatedWord, Translation, translated
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.recipe_hosts import RecipeHosts
from vllm_cluster.serving.translate.text import recipe_document
from vllm_cluster.serving.translate.words import ShellWord

TP, PP, DP = "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"
EXPERTS = "--enable-expert-parallel"
# What serves here; where a recipe names none, the first of these that it has.
ONE_HOST = ("single_node_tp", "single_node_tep", "single_node_dep")
# Without RDMA tensor parallel over hosts waits for the network in each layer, a pipeline once a stage.
PIPELINE = "multi_node_tp_pp"
HOSTS = ("multi_node_tp", "multi_node_dep", "multi_node_tep", PIPELINE, "multi_node_tp_dp")
NOT_HERE = {"pd_cluster": "prefill and decode in pools of their own are not served"}
# Weights in these need this generation, where a variant names no other.
_BLACKWELL = ("nvfp4", "fp4")


def translate_recipe(
    text: str, place: str, hosts: RecipeHosts, *, variant: str = "", strategy: str = ""
) -> Translation:
    """Return what a recipe asks for on these hosts; `place` names it in errors.

    Raises:
        UsageError: it cannot be read, has no such variant or strategy, or cannot be served here; with line and key.
    """
    reading = Reading.of(text, place)
    root = YamlNode.of(recipe_document(text, reading), reading)
    if root.get("omni").value is not None:
        raise UsageError(
            f"{place}:{root.get('omni').line}: omni: vllm-omni serves this recipe, which is another program"
        )
    recipe = _Recipe(root, hosts)
    chosen = recipe.variant(variant)
    way = recipe.strategy(strategy)
    words = [ShellWord(recipe.model(chosen.key), recipe.line), *recipe.words(chosen.key, way.key)]
    found = translated([ServeWords(tuple(words), recipe.line, (dict(recipe.variables(chosen.key, way.key)),))], reading)
    rows = (chosen.row("variant"), way.row("strategy"), *recipe.rows())
    return replace(found, rows=(*rows, *found.rows))


@dataclass(frozen=True)
class _Choice:
    """What was chosen among what, and why."""

    key: str
    among: tuple[str, ...]
    why: str

    def row(self, what: str) -> TranslatedWord:
        """Return it as a row of the table."""
        others = ", ".join(printable(one) for one in self.among if one != self.key)
        also = f"; --{what} has also: {others}" if others else ""
        return TranslatedWord("chosen", f"{what} {printable(self.key)}", "chosen", f"{self.why}{also}")


class _Recipe:
    """A recipe beside the hosts."""

    def __init__(self, root: YamlNode, hosts: RecipeHosts) -> None:
        self._root, self._hosts = root, hosts
        self._model = root.get("model")
        self.line = self._model.line

    def model(self, variant: str) -> str:
        """Return the repository that a variant serves."""
        own = self._root.get("variants", variant, "model_id").text() or self._model.get("model_id").text()
        if not own:
            raise self._model.get("model_id").error("must be text")
        return own

    def variant(self, asked: str) -> _Choice:
        """Return the variant that was asked for; else the first one, `default` before all, that the GPUs hold."""
        known = tuple(self._root.get("variants").mapping()) or ("default",)
        known = (*(one for one in known if one == "default"), *(one for one in known if one != "default"))
        if asked:
            return _Choice(_one_of("variant", asked, known, self._root.reading.place), known, "as asked for")
        fitting = next((one for one in known if self._holds(one)), None)
        if fitting is None or fitting == known[0]:
            why = "the first one" if fitting else f"the first one, and these GPUs hold none: {self._needs(known[0])}"
            return _Choice(known[0], known, why)
        return _Choice(fitting, known, f"the first one that these GPUs hold; {known[0]}: {self._needs(known[0])}")

    def strategy(self, asked: str) -> _Choice:
        """Return the strategy that was asked for; else the one that suits the hosts."""
        named = (*self._root.get("compatible_strategies").names(), *self._granted())
        if not named:
            raise self._root.get("compatible_strategies").error("must be a list of strategies")
        if asked in NOT_HERE:
            raise UsageError(f"--strategy: {asked}: {NOT_HERE[asked]}", hint="vcluster serve --from RECIPE --dry-run")
        known = tuple(one for one in dict.fromkeys(named) if one in (*ONE_HOST, *HOSTS) and not self._barred(one))
        if not known:
            key = self._root.get("compatible_strategies")
            raise key.error(f"none of its strategies serves here ({', '.join(map(printable, named))})")
        if asked:
            return _Choice(_one_of("strategy", asked, known, self._root.reading.place), known, "as asked for")
        enough = tuple(one for one in known if self._floor(one) <= self._hosts.total)
        if not enough:
            least = min(map(self._floor, known))
            text = f"it wants {count(least, 'GPU')}, here are {self._hosts.total}"
            raise UsageError(
                f"{self._root.reading.place}:{self._root.get('strategy_min_gpus').line}: strategy_min_gpus: {text}"
            )
        return self._suits(known, enough)

    def _suits(self, known: tuple[str, ...], enough: tuple[str, ...]) -> _Choice:
        several = len(self._hosts.gpus) > 1
        hosts = count(len(self._hosts.gpus), "host")
        preferred = self._root.get("default_strategy").text()
        if several and preferred in ONE_HOST:
            preferred = preferred.replace("single_node", "multi_node")
        if preferred in enough and (several or preferred in ONE_HOST):
            return _Choice(preferred, known, f"{hosts}; the recipe's default_strategy")
        order: tuple[str, ...] = (*HOSTS, *ONE_HOST) if several else (*ONE_HOST, *HOSTS)
        why = hosts
        if several and not self._hosts.rdma and PIPELINE in enough:
            order, why = (PIPELINE,), f"{hosts} without RDMA"
        return _Choice(next(one for one in order if one in enough), known, why)

    def words(self, variant: str, strategy: str) -> Iterator[ShellWord]:
        """Return all flags in their order: of two of the same name vLLM takes the last one."""
        own, layout = self._root.get("variants", variant), self._root.get("strategy_overrides", strategy)
        yield from self._model.get("base_args").words()
        yield from own.get("extra_args").words()
        yield from self._hosts.exact(own.get("hardware_overrides")).get("extra_args").words()
        yield from (
            ShellWord(word, self._root.get("compatible_strategies").line) for word in self._layout(own, strategy)
        )
        yield from layout.get("extra_args").words()
        yield from layout.get("vllm_args").words()
        for node in self._overrides(own, layout):
            yield from node.get("extra_args").words()
        yield from self._features(variant, strategy)

    def variables(self, variant: str, strategy: str) -> Iterator[tuple[str, ShellWord]]:
        """Return the variables of all parts that are used; a later one counts more."""
        own, layout = self._root.get("variants", variant), self._root.get("strategy_overrides", strategy)
        parts = [self._model.get("base_env"), own.get("extra_env"), layout.get("env"), layout.get("extra_env")]
        for node in (*parts, *(node.get("extra_env") for node in self._overrides(own, layout))):
            for name in node.mapping():
                yield name, ShellWord(node.get(name).word(), node.get(name).line)

    def rows(self) -> Iterator[TranslatedWord]:
        """Return what else a reader of the recipe sees to before."""
        least = self._model.get("min_vllm_version")
        if least.value is not None:
            why = "not checked by its number: the image's own parser judges the flags"
            yield TranslatedWord("dropped", f"min_vllm_version {printable(least.word())}", "", why)
        if self._root.get("dependencies").value is not None:
            line = self._root.get("dependencies").line
            why = f"what it installs beside vLLM belongs in the image (line {line})"
            yield TranslatedWord("dropped", "dependencies", "", why)

    def _layout(self, variant: YamlNode, strategy: str) -> tuple[str, ...]:
        """The degrees of a strategy on these hosts: TP within a host, but where it spans them all."""
        gpus, total = self._hosts.gpus, self._hosts.total
        least = min(gpus)
        experts = (EXPERTS,) if strategy.endswith(("_tep", "_dep")) else ()
        degrees: dict[str, int] = {
            "single_node_tp": {TP: self._one_host(variant)},
            "single_node_tep": {TP: gpus[0]},
            "single_node_dep": {DP: gpus[0]},
            "multi_node_tp": {TP: total},
            "multi_node_tep": {TP: total},
            "multi_node_dep": {DP: total},
            "multi_node_tp_pp": {TP: least, PP: len(gpus)},
            "multi_node_tp_dp": {TP: least, DP: len(gpus)},
        }[strategy]
        return (*(word for option, number in degrees.items() for word in (option, str(number))), *experts)

    def _one_host(self, variant: YamlNode) -> int:
        """The TP of one host: as the recipe has it; else 1 where a GPU holds the model, and all GPUs."""
        gpus = self._hosts.gpus[0]
        for node in (variant.get("tp"), self._root.get("strategy_overrides", "single_node_tp", "tp")):
            found = self._hosts.closest(node, "default") if isinstance(node.value, dict) else node
            if found is not None and (number := found.number()):
                return min(number, gpus)
        needs = variant.get("vram_minimum_gb").number() * 10**9
        return 1 if needs and needs <= self._hosts.memory_bytes else gpus

    def _overrides(self, variant: YamlNode, layout: YamlNode) -> Iterator[YamlNode]:
        """What a recipe has for these GPUs: that of the strategy replaces the others."""
        of_strategy = layout.get("hardware_overrides")
        kind = self._hosts.of_kind(of_strategy)
        if kind.value is not None:
            yield kind
        else:
            yield self._hosts.of_kind(self._root.get("hardware_overrides"))
            yield self._hosts.of_kind(variant.get("hardware_overrides"))
        yield self._hosts.exact(of_strategy)

    def _features(self, variant: str, strategy: str) -> Iterator[ShellWord]:
        """The flags of the features that are on by default."""
        off = {*self._root.get("opt_in_features").names()}
        gpu = self._hosts.closest(self._root.get("hardware_opt_in_features"))
        off |= {*gpu.names()} if gpu else set()
        for name in self._root.get("features").mapping():
            feature = self._root.get("features", name)
            only = feature.get("strategies").names()
            if name in off or (only and strategy not in only):
                continue
            if feature.get("modes").value is not None:
                mode = self._mode(feature, name, variant)
                feature = feature.get("modes", mode) if mode else YamlNode(feature.document, feature.reading)
            own = self._hosts.closest(feature.get("hardware_overrides"), "default")
            replaced = own is not None and own.get("args").value is not None
            yield from (own if own and replaced else feature).get("args").words()

    def _mode(self, feature: YamlNode, name: str, variant: str) -> str:
        """The mode of a feature that has several, of those that this variant and these GPUs may have."""
        may = [
            mode
            for mode in feature.get("modes").mapping()
            if variant in (feature.get("modes", mode, "variants").names() or (variant,))
            and not self._unsupported(feature.get("modes", mode, "hardware"))
        ]
        named = (self._root.get("variants", variant, "default_modes", name), feature.get("default_mode"))
        return next((one for one in (*(node.text() for node in named), *may) if one in may), "")

    def _holds(self, variant: str) -> bool:
        """Whether the GPUs have the memory and the number formats of a variant."""
        node = self._root.get("variants", variant)
        _, generation = self._hosts.known
        listed = node.get("supported_hardware").names()
        if listed and not {*self._hosts.keys} & {*listed}:
            return False
        wants = node.get("precision_hardware", "generation").text() or (
            "blackwell"
            if node.get("precision").text() in _BLACKWELL and "precision_hardware" not in node.mapping()
            else ""
        )
        memory = self._hosts.memory_bytes * self._hosts.total
        return node.get("vram_minimum_gb").number() * 10**9 <= memory and (not wants or generation == wants)

    def _needs(self, variant: str) -> str:
        node = self._root.get("variants", variant)
        memory = self._hosts.memory_bytes * self._hosts.total / 10**9
        precision = printable(node.get("precision").text())
        return f"{precision or 'it'} wants {node.get('vram_minimum_gb').number()} GB, here are {memory:.0f}"

    def _granted(self) -> Iterator[str]:
        """The strategies that only some GPUs have, these among them."""
        gates = self._root.get("strategy_hardware")
        for name in gates.mapping():
            found = self._hosts.closest(gates.get(name), "default")
            if found is not None and found.text() == "supported":
                yield name

    def _barred(self, strategy: str) -> bool:
        return self._unsupported(self._root.get("strategy_hardware", strategy))

    def _unsupported(self, gate: YamlNode) -> bool:
        found = self._hosts.closest(gate, "default")
        return found is not None and found.text() == "unsupported"

    def _floor(self, strategy: str) -> int:
        """The GPUs that a strategy needs at least."""
        floors = self._root.get("strategy_min_gpus")
        if not isinstance(floors.value, dict):
            return floors.number()
        own = floors.get(strategy).number()
        exact = self._hosts.exact(floors)
        return max(own, exact.get(strategy).number() if isinstance(exact.value, dict) else exact.number())


def _one_of(what: str, asked: str, known: tuple[str, ...], place: str) -> str:
    """The word that was asked for.

    Raises:
        UsageError: it is not among those that are known.
    """
    if asked in known:
        return asked
    near = nearest(asked, known)
    listed = ", ".join(map(printable, known))
    text = f"--{what}: {place} has no {what} {printable(asked)}: it has {listed}"
    raise UsageError(text, hint=f"use --{what} {printable(shell_line([near]))}" if near else None)
