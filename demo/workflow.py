"""From a workflow as the editor saves it to the prompt that ComfyUI's queue takes."""

from collections.abc import Iterator, Sequence

NOTES = ("Note", "MarkdownNote")
MUTED, BYPASSED = 2, 4
WIDGET_TYPES = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR", "COMFY_DYNAMICCOMBO_V3")
SEEDS = ("seed", "noise_seed")
UPLOADS = ("image_upload", "audio_upload", "video_upload")


class WorkflowError(ValueError):
    """The workflow holds something that can't be turned into a prompt."""


def api_prompt(workflow: dict, object_info: dict) -> dict:
    """The API prompt of a workflow in the editor's format; `object_info` is the host's GET /object_info.

    Notes and muted nodes are left out, and so is what was linked from them. Raises WorkflowError for
    nodes that the host does not know, bypassed nodes, and widget values that do not fit the node.
    """
    nodes = {node["id"]: node for node in workflow["nodes"] if _takes_part(node)}
    sources = {}
    for link in workflow.get("links", []):
        link_id, origin, slot = _link(link)
        sources[link_id] = (origin, slot)
    prompt = {}
    for node_id, node in nodes.items():
        name = f"node {node_id} ({node['type']})"
        if node["type"] not in object_info:
            raise WorkflowError(
                f"{name} is unknown to this ComfyUI: subgraphs and editor-only nodes are not converted."
            )
        if node.get("mode") == BYPASSED:
            raise WorkflowError(f"{name} is bypassed: remove it or mute it.")
        description = object_info[node["type"]]
        inputs = _widget_values(name, node.get("widgets_values") or [], description)
        for socket in node.get("inputs", []):
            origin, slot = sources.get(socket.get("link"), (None, 0))
            if origin in nodes:
                inputs[socket["name"]] = [str(origin), slot]
        title = node.get("title") or description.get("display_name") or node["type"]
        prompt[str(node_id)] = {"class_type": node["type"], "inputs": inputs, "_meta": {"title": title}}
    return prompt


def _takes_part(node: dict) -> bool:
    return node["type"] not in NOTES and node.get("mode") != MUTED


def _link(link: Sequence | dict) -> tuple[int, int, int]:
    """Id, origin node and origin slot of a link, in either of the editor's two notations."""
    if isinstance(link, dict):
        return link["id"], link["origin_id"], link["origin_slot"]
    return link[0], link[1], link[2]


def _widgets(description: dict) -> Iterator[tuple[str, dict, bool]]:
    """Name and options of each widget in the editor's order, and whether a helper widget's value follows its own."""
    for group in ("required", "optional"):
        declared = description["input"].get(group, {})
        for name in description.get("input_order", {}).get(group, declared):
            kind, options = declared[name][0], (declared[name][1:] or [{}])[0]
            kind = options.get("widgetType") or kind  # of an input that takes more than one type
            if options.get("forceInput") or not (isinstance(kind, list) or kind in WIDGET_TYPES):
                continue
            if isinstance(kind, list):
                options = {"options": kind, **options}
            # After a seed the editor saves "fixed" or "randomize"; after a file, its upload button.
            control = options.get("control_after_generate")
            seed = kind == "INT" and name in SEEDS if control is None else bool(control)
            yield name, options, seed or any(options.get(upload) for upload in UPLOADS)


def _widget_values(node: str, values: list | dict, description: dict) -> dict:
    """The value of each widget by name. Raises WorkflowError when there are too many or too few."""
    widgets = list(_widgets(description))
    if isinstance(values, dict):
        return {name: values[name] for name, _, _ in widgets if name in values}
    found, position = {}, 0
    for name, options, helper in widgets:
        if position < len(values):
            found[name] = values[position]
        elif "default" in options:
            found[name] = options["default"]
        elif options.get("options"):
            found[name] = options["options"][0]
        else:
            raise WorkflowError(f"{node} has no value for its widget '{name}': save the workflow anew in the editor.")
        position += 1 + helper
    if position < len(values):
        raise WorkflowError(
            f"{node} has {len(values)} widget values where its widgets take {position}: "
            "save the workflow anew in the editor."
        )
    return found
