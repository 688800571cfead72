"""Overrides as KJNodes makes them: of a function that calls one of a package's functions, inside of another."""

from comfy.ldm.modules.attention import wrap_attn


def sageattn(*_args):
    return None


def sageattn3_blackwell(*_args):
    return None


def get_sage_func(sage_attention):
    if "sageattn3" in sage_attention:
        sageattn3 = sageattn3_blackwell

        def sage_func(*args):
            return sageattn3(*args)
    else:
        plain = sageattn

        def sage_func(*args):
            return plain(*args)

    @wrap_attn
    def attention_sage(q, k, v, _heads, **_kwargs):
        return sage_func(q, k, v)

    return attention_sage


def make_override(sage_attention):
    new_attention = get_sage_func(sage_attention)

    def attention_override_sage(_func, *args, **kwargs):
        return new_attention.__wrapped__(*args, **kwargs)

    return attention_override_sage


CHOOSE = {
    "sage of a pack": make_override("auto"),
    "sage3 of a pack": make_override("sageattn3_per_block_mean"),
}
OTHERS = {}
