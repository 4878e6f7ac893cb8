"""Write docs/options.md from the fields of DelegateOptions."""

import dataclasses
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxdelegate.options import DelegateOptions
from jaxdelegate.providers.builtin import aliases

ROOT = Path(__file__).parents[1]
HEAD = """# Options of JaxDelegate

For anyone who sets an option. Options are keywords, a mapping, or flags of the tools:

```python
import jaxdelegate as jd

delegate = jd.JaxDelegate(compute_dtype="float16", serialization_dir="programs")
```

```sh
jaxdelegate benchmark_model model.tflite --jax_compute_dtype=float16
```

`load_delegate` of the stock interpreters takes the same names and values as strings. An unknown
name or an impossible value is an error that suggests the closest known ones. The names are those of
TfLiteGpuDelegateOptionsV2 if it has the option. Flags of TFLite's tools with the same meaning are
aliases of an option's flag; giving both with different values is an error. Options marked as keys
are part of the [cache's keys](cache.md): another value needs another program.
`python docs/generate_options.py` writes this page.

| option | values | default | key | meaning |
|---|---|---|---|---|
"""


def page() -> str:
    """The page."""
    hints = get_type_hints(DelegateOptions)
    rows = [
        f"| `{field.name}` | {_values(hints[field.name])} | `{field.default!r}` "
        f"| {'yes' if field.metadata['keyed'] else ''} "
        f"| {field.metadata['help']}{_aliases(field.name)} |"
        for field in dataclasses.fields(DelegateOptions)
    ]
    return HEAD + "\n".join(rows) + "\n"


def _aliases(option: str) -> str:
    names = " and ".join(f"`--{name}`" for name in aliases(option))
    return f" TFLite's flag: {names}." if names else ""


def _values(hint: Any) -> str:
    """What a field may hold, without the None that stands for "not set"."""
    alternatives = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    words: list[str] = []
    for alternative in alternatives:
        if get_origin(alternative) is Literal:
            words += [f"`{value!r}`" for value in get_args(alternative)]
        elif alternative is not type(None):
            words.append(alternative.__name__)
    return ", ".join(words)


if __name__ == "__main__":
    (ROOT / "docs" / "options.md").write_text(page())
