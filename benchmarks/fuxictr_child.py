"""The other side of fuxictr_layers.py: FuxiCTR's classes with our weights, in FuxiCTR's environment.

    python benchmarks/fuxictr_child.py MODEL FILE [ZOO]

FILE has our weights by their names, the looked-up vectors and linear weights, and the settings; out.pt beside it gets
the logits. Nothing of ours is imported.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

# Its data loaders want ray, which no layer needs.
for missing in ("ray", "ray.data", "ray.data.datasource", "ray.data.datasource.filename_provider"):
    sys.modules.setdefault(missing, MagicMock())

from fuxictr.pytorch.layers import (  # noqa: E402
    BilinearInteractionV2,
    CompressedInteractionNet,
    CrossInteraction,
    CrossNetMix,
    CrossNetV2,
    MLP_Block,
    SqueezeExcitation,
)

Weights = dict[str, Tensor]


def copy(layer: nn.Module, weights: Weights, name: str) -> None:
    """Our affine layer `name` into theirs."""
    with torch.no_grad():
        layer.weight.copy_(weights[f"{name}.weight"].view_as(layer.weight))
        if layer.bias is not None:
            layer.bias.copy_(weights[f"{name}.bias"])


def mlp(
    weights: Weights, name: str, width: int, hidden: list[int], last: bool = True, end: str | None = None
) -> nn.Module:
    """Their MLP with our layers, whose numbers in `name` are 0, 2, 4 ... or, in a gate, 0, 1 ..."""
    found = MLP_Block(width, hidden, "ReLU", 1 if last else None, end)
    layers = [layer for layer in found.mlp if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        copy(layer, weights, f"{name}.{2 * number}")
    return found


def of_zoo(zoo: str, name: str) -> Any:
    """A file of their repository's models as a module."""
    if not zoo:
        raise SystemExit(f"{name} is in FuxiCTR's repository and not in its wheel; name a checkout by --zoo")
    spec = importlib.util.spec_from_file_location(name, Path(zoo, "model_zoo", name, "src", f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dcnv2(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    x, hidden = found["vectors"].flatten(1), list(settings["hidden"])
    width, part = x.shape[1], "branches.0.interaction"
    if settings.get("rank"):
        cross = CrossNetMix(width, settings["crosses"], settings["rank"], settings["experts"])
        with torch.no_grad():
            for number in range(settings["crosses"]):
                cross.V_list[number].copy_(weights[f"{part}.down.{number}"])
                # Theirs multiplies from the left.
                cross.C_list[number].copy_(weights[f"{part}.inside.{number}"].transpose(1, 2))
                cross.U_list[number].copy_(weights[f"{part}.up.{number}"].transpose(1, 2))
                cross.bias[number].copy_(weights[f"{part}.biases.{number}"][:, None])
            for expert, gate in enumerate(cross.gating):
                gate.weight.copy_(weights[f"{part}.scores.weight"][expert][None])
    else:
        cross = CrossNetV2(width, settings["crosses"])
        for number, layer in enumerate(cross.cross_layers):
            copy(layer, weights, f"{part}.layers.{number}")
    if settings.get("structure") == "stacked":
        return mlp(weights, "branches.0.classifier.layers", width, hidden).to(x)(cross.to(x)(x))
    # Parallel: one last layer over the crosses and the DNN's units, of which we have two, one for each.
    deep = mlp(weights, "branches.1.classifier.layers", width, hidden, last=False)
    last = nn.Linear(width + hidden[-1], 1)
    one, other = "branches.0.classifier.layers.0", f"branches.1.classifier.layers.{2 * len(hidden)}"
    with torch.no_grad():
        last.weight.copy_(torch.cat([weights[f"{one}.weight"], weights[f"{other}.weight"]], dim=1))
        last.bias.copy_(weights[f"{one}.bias"] + weights[f"{other}.bias"])
    return last.to(x)(torch.cat([cross.to(x)(x), deep.to(x)(x)], dim=-1))


def xdeepfm(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v = found["vectors"]
    cin = CompressedInteractionNet(v.shape[1], list(settings["maps"]))
    for number, layer in enumerate(cin.cin_layer.values()):
        copy(layer, weights, f"branches.0.interaction.layers.{number}")
    copy(cin.fc, weights, "branches.0.classifier.layers.0")
    deep = mlp(weights, "branches.1.classifier.layers", v.shape[1] * v.shape[2], list(settings["hidden"]))
    return cin.to(v)(v) + deep.to(v)(v.flatten(1)) + found["linear"].sum(dim=1)


def autoint(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v, size = found["vectors"], settings["attention"]
    layers = []
    for number in range(settings["attention_layers"]):
        width = v.shape[2] if number == 0 else size
        one = of_zoo(zoo, "AutoInt").MultiHeadSelfAttention(
            width, size, settings["heads"], use_residual=True, use_scale=settings["scaled"]
        )
        pairs = {"W_q": "query", "W_k": "key", "W_v": "value"} | ({"W_res": "residual"} if width != size else {})
        for theirs, ours in pairs.items():
            copy(getattr(one, theirs), weights, f"branches.0.interaction.layers.{number}.{ours}")
        layers.append(one)
    last = nn.Linear(v.shape[1] * size, 1)
    copy(last, weights, "branches.0.classifier.layers.0")
    deep = mlp(weights, "branches.1.classifier.layers", v.shape[1] * v.shape[2], list(settings["hidden"]))
    attended = nn.Sequential(*layers).to(v)(v).flatten(1)
    return last.to(v)(attended) + deep.to(v)(v.flatten(1))


def finalmlp(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    x, hidden = found["vectors"].flatten(1), list(settings["hidden"])
    units = []
    for number, own in enumerate(("first", "second")):
        # The gate of their FeatureSelection, whose context is an embedding of fields: here that of all fields.
        gate = MLP_Block(x.shape[1], list(settings["gate_hidden"]), "ReLU", x.shape[1], "Sigmoid")
        for place, layer in enumerate(each for each in gate.mlp if isinstance(each, nn.Linear)):
            copy(layer, weights, f"branches.0.interaction.parts.{number}.gate.layers.{place}")
        stream = mlp(weights, f"branches.0.classifier.{own}", x.shape[1], hidden, last=False)
        units.append(stream.to(x)(x * (gate.to(x)(x) * 2)))
    fusion = of_zoo(zoo, "FinalMLP").InteractionAggregation(hidden[-1], hidden[-1], 1, settings["heads"])
    both, bias = weights["branches.0.classifier.last.weight"], weights["branches.0.classifier.last.bias"]
    with torch.no_grad():
        fusion.w_x.weight.copy_(both[:, : hidden[-1]])
        fusion.w_y.weight.copy_(both[:, hidden[-1] :])
        fusion.w_x.bias.copy_(bias)
        fusion.w_y.bias.zero_()
        fusion.w_xy.copy_(weights["branches.0.classifier.products"].reshape(-1, 1))
    return fusion.to(x)(*units)


def fibinet(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v, part = found["vectors"], "branches.0.interaction.parts"
    fields, dim = v.shape[1:]
    squeeze = SqueezeExcitation(fields)
    copy(squeeze.excitation[0], weights, f"{part}.1.gate.layers.0")
    copy(squeeze.excitation[2], weights, f"{part}.1.gate.layers.1")
    kind = {"pair": "field_interaction", "each": "field_each"}[settings["bilinear"]]
    products = []
    for ours, vectors in ((f"{part}.0", v), (f"{part}.1.part", squeeze.to(v)(v))):
        bilinear, own = BilinearInteractionV2(fields, dim, kind), weights[f"{ours}.weight.entries"]
        with torch.no_grad():
            bilinear.bilinear_W[: len(own)].copy_(own)
        # As a whole it would turn its places into floats.
        bilinear.bilinear_W.data = bilinear.bilinear_W.data.to(v)
        products.append(bilinear(vectors))
    x = torch.cat(products, dim=1).flatten(1)
    deep = mlp(weights, "branches.0.classifier.layers", x.shape[1], list(settings["hidden"]))
    return deep.to(v)(x) + found["linear"].sum(dim=1)


def gdcn(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    x, part = found["vectors"].flatten(1), "branches.0.interaction"
    cross = of_zoo(zoo, "GDCN").GateCorssLayer(x.shape[1], settings["crosses"])
    with torch.no_grad():
        for number in range(settings["crosses"]):
            cross.w[number].weight.copy_(weights[f"{part}.layers.{number}.weight"])
            cross.b[number].copy_(weights[f"{part}.layers.{number}.bias"])
            cross.wg[number].weight.copy_(weights[f"{part}.gates.{number}.layers.0.weight"])
    return mlp(weights, "branches.0.classifier.layers", x.shape[1], list(settings["hidden"])).to(x)(cross.to(x)(x))


def masknet(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v, part, blocks = found["vectors"], "branches.0.interaction", list(settings["blocks"])
    own, width, hidden = of_zoo(zoo, "MaskNet"), v.shape[1] * v.shape[2], list(settings["hidden"])
    norms = []
    for field in range(v.shape[1]):
        norms.append(nn.LayerNorm(v.shape[2]))
        with torch.no_grad():
            norms[-1].weight.copy_(weights[f"{part}.norm.gain"][field])
            norms[-1].bias.copy_(weights[f"{part}.norm.shift"][field])
    if settings["structure"] == "serial":
        found_by = own.SerialMaskNet(width, 1, None, blocks)
        copy(found_by.fc[0], weights, "branches.0.classifier.layers.0")
    else:
        found_by = own.ParallelMaskNet(width, 1, None, len(blocks), blocks[0], hidden)
        found_by.dnn = mlp(weights, "branches.0.classifier.layers", sum(blocks), hidden)
    for number, block in enumerate(found_by.mask_blocks):
        copy(block.mask_layer[0], weights, f"{part}.masks.{number}.layers.0")
        copy(block.mask_layer[2], weights, f"{part}.masks.{number}.layers.1")
        copy(block.hidden_layer[0], weights, f"{part}.layers.{number}")
        copy(block.hidden_layer[1], weights, f"{part}.norms.{number}")
    normed = torch.stack([norm.to(v)(v[:, field]) for field, norm in enumerate(norms)], dim=1)
    return found_by.to(v)(v.flatten(1), normed.flatten(1))


def edcn(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v, part, own = found["vectors"], "branches.0.interaction", of_zoo(zoo, "EDCN")
    width = v.shape[1] * v.shape[2]
    m, first = v.flatten(1), None
    for number in range(settings["crosses"]):
        regulation = own.RegulationModule(v.shape[1], v.shape[2])
        cross, layer = CrossInteraction(width), MLP_Block(width, [width], "ReLU")
        with torch.no_grad():
            for theirs, ours in zip((regulation.g1, regulation.g2), weights[f"{part}.factors.{number}"], strict=True):
                theirs.copy_(ours)
            cross.weight.weight.copy_(weights[f"{part}.crosses.{number}.weight"])
            cross.bias.copy_(weights[f"{part}.biases.{number}"])
        copy(layer.mlp[0], weights, f"{part}.layers.{number}")
        c, d = regulation.to(v)(m)
        first = c if first is None else first
        # The formula of DCN's layer, x_0 (w^T x) + b + x; theirs leaves the last term out.
        c, d = cross.to(v)(first, c) + c, layer.to(v)(d)
        m = own.BridgeModule(width)(c, d)
    last = nn.Linear(3 * width, 1)
    copy(last, weights, "branches.0.classifier.layers.0")
    return last.to(v)(torch.cat([c, d, m], dim=1))


def finalnet(weights: Weights, found: Weights, settings: dict[str, Any], zoo: str) -> Tensor:
    v, own, blocks = found["vectors"], of_zoo(zoo, "FinalNet"), list(settings["blocks"])
    logits = []
    for branch in range(2):
        x, part = v, f"branches.{branch}.interaction"
        if branch == 0:
            gate = own.FeatureGating(v.shape[1])
            copy(gate.linear, weights, f"{part}.gate")
            x = gate.to(v)(v)
        x = x.flatten(1)
        stack, last = own.FinalBlock(x.shape[1], blocks, None, 0, True, "concat"), nn.Linear(blocks[-1], 1)
        for number in range(len(blocks)):
            copy(stack.layer[number].linear, weights, f"{part}.layers.{number}")
            copy(stack.norm[number], weights, f"{part}.norms.{number}")
        copy(last, weights, f"branches.{branch}.classifier.layers.0")
        logits.append(last.to(v)(stack.eval().to(v)(x)))
    return 0.5 * (logits[0] + logits[1])


BUILD = {"DCNv2": dcnv2, "xDeepFM": xdeepfm, "AutoInt": autoint, "FinalMLP": finalmlp}
BUILD |= {"FiBiNET": fibinet, "GDCN": gdcn, "MaskNet": masknet, "EDCN": edcn, "FinalNet": finalnet}


def main() -> None:
    name, file, zoo = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    given = torch.load(file)
    logits = {}
    for kind in (torch.float64, torch.float32):
        found = {key: value.detach().to(kind) for key, value in given["found"].items()}
        with torch.no_grad():
            own = BUILD[name](given["weights"], found, given["settings"], zoo)
        logits[str(kind).removeprefix("torch.")] = own.reshape(-1)
    torch.save(logits, file.with_name("out.pt"))


if __name__ == "__main__":
    main()
