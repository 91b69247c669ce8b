#!/usr/bin/env python3
"""Makes tests/golden/config_fields.json: the keys of config.json that transformers' classes have, with their defaults.

For each family and for the version of transformers that runs: "fields" has every field of the class and every key that
the class writes, with the default; "read" has the names that the model's code reads from its configuration beside these
(is_causal is one: no class has it as a field, but the code of masks reads it). Each version adds itself to the file, so
run the script with transformers 5 and with 4:
  python3 tests/golden/make_config_fields.py
  PYTHONPATH=DIRECTORY_WITH_TRANSFORMERS_4 python3 tests/golden/make_config_fields.py
"""

import dataclasses
import inspect
import json
import pathlib
import re

import transformers

CLASSES = {"gpt2": "GPT2Config", "llama": "LlamaConfig", "mistral": "MistralConfig", "ministral": "MinistralConfig", "qwen2": "Qwen2Config",
           "qwen3": "Qwen3Config", "mixtral": "MixtralConfig", "qwen3_moe": "Qwen3MoeConfig", "olmoe": "OlmoeConfig"}
SHARED = ["masking_utils.py", "cache_utils.py", "modeling_rope_utils.py", "modeling_utils.py"]
# Attributes of the object, which are no keys of config.json.
ATTRIBUTES = {"json", "base_model_tp_plan", "base_model_pp_plan", "base_model_ep_plan", "sub_configs", "sub_config_name",
              "is_heterogeneous", "extra_files", "default_theta", "attribute_map", "_heterogeneity_spec", "num_heads"}


def plain(value):
    """Returns a value as config.json would have it, or the default where there is none."""
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return None


def fields_of(cls):
    config = cls()
    fields = {k: plain(v) for k, v in config.to_dict().items()}
    if dataclasses.is_dataclass(cls):
        fields |= {f.name: plain(f.default) for f in dataclasses.fields(cls)}
        # dropped or renamed when a file is read
        generation = transformers.GenerationConfig._get_default_generation_params()
        fields |= {k: plain(v) for k, v in generation.items() if k not in fields}
    else:
        fields |= {k: plain(p.default) for k, p in inspect.signature(cls.__init__).parameters.items()
                   if p.default is not inspect.Parameter.empty}
    for alias, key in cls.attribute_map.items():
        fields[alias] = fields[key]
    for key in "model_type", "transformers_version":
        fields.pop(key, None)
    return fields


def read_by(family):
    """Returns the names that the code of a family and of what it uses reads from its configuration."""
    root = pathlib.Path(transformers.__file__).parent
    kinds = [family] + ["ministral"] * (family == "mistral")
    names = set()
    for file in SHARED + [f"models/{kind}/modeling_{kind}.py" for kind in kinds]:
        if not (root / file).exists():
            continue
        text = (root / file).read_text()
        names |= set(re.findall(r"\bconfig\.([a-z_]\w*)", text))
        names |= set(re.findall(r'getattr\((?:self\.)?\w*config\w*(?:\(\))?, *"(\w+)"', text))
    return names - ATTRIBUTES


def main():
    path = pathlib.Path(__file__).parent / "config_fields.json"
    out = json.loads(path.read_text()) if path.exists() else {}
    version = {}
    for family, name in CLASSES.items():
        cls = getattr(transformers, name)
        fields = fields_of(cls)
        names = {n for n in read_by(family) if not callable(getattr(cls, n, None)) and n not in fields}
        version[family] = {"fields": fields, "read": sorted(names)}
    # what all families have is listed once
    common = {k: v for k, v in version["llama"]["fields"].items()
              if all(k in f["fields"] and f["fields"][k] == v for f in version.values())}
    read = set.intersection(*(set(f["read"]) for f in version.values()))
    for f in version.values():
        f["fields"] = {k: v for k, v in f["fields"].items() if k not in common}
        f["read"] = sorted(set(f["read"]) - read)
    version["all"] = {"fields": common, "read": sorted(read)}
    out[transformers.__version__] = version
    path.write_text(json.dumps(out, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
