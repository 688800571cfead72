"""CHOOSE has, by kernel and form, overrides that only choose a kernel. OTHERS do something of their own, whatever their
names."""

import functools

from comfy.ldm.modules import attention
from comfy.ldm.modules.attention import (
    attention3_sage,
    attention_flash,
    attention_pytorch,
    attention_sage,
    attention_split,
    attention_sub_quad,
    attention_xformers,
)

seen = []


def by_name(_func, *args, **kwargs):
    return attention_sub_quad(*args, **kwargs)


def by_inner_name(_original, *inputs, **more):
    return attention_flash.__wrapped__(*inputs, **more)


def by_module(_func, *args, **kwargs):
    return attention.attention_split(*args, **kwargs)


def held(kernel):
    def override(_func, *args, **kwargs):
        return kernel(*args, **kwargs)

    return override


def held_inside(kernel):
    def attention_override_sage(_func, *args, **kwargs):
        return kernel.__wrapped__(*args, **kwargs)

    return attention_override_sage


CHOOSE = {
    "sub_quad by a name": by_name,
    "flash by what a name wraps": by_inner_name,
    "split by a module": by_module,
    "sage held": held(attention_sage),
    "sage held without its wrapper": held(attention_sage.__wrapped__),
    "sage held, called without its wrapper": held_inside(attention_sage),
    "sage3 in a lambda": lambda _func, *args, **kwargs: attention3_sage(*args, **kwargs),
    "xformers held": held(attention_xformers),
    "pytorch held": held(attention_pytorch),
    "split held": held(attention_split),
}


def own_attention(q, k, v, heads, *args, **kwargs):
    return 2 * attention_sage(q, k, v, heads, *args, **kwargs)


@functools.wraps(attention_sage)
def attention_sage_and_more(*args, **kwargs):
    return 2 * attention_sage(*args, **kwargs)


def flash_attention_override(func, *args, **kwargs):
    return func(*args, **kwargs)


def sage_twice(_func, *args, **kwargs):
    return 2 * attention_sage(*args, **kwargs)


def sage_and_a_note(_func, *args, **kwargs):
    seen.append(len(args))
    return attention_sage(*args, **kwargs)


def sage_scaled(_func, *args, **kwargs):
    return attention_sage(*args, scale=2.0, **kwargs)


def sage_without_options(_func, *args, **_kwargs):
    return attention_sage(*args)


def sage_of_the_chosen(*args, **kwargs):
    return attention_sage(*args, **kwargs)


def sage_with_more(_func, _q, *args, **kwargs):
    return attention_sage(*args, **kwargs)


class SageAttention:
    def __call__(self, _func, *args, **kwargs):
        return attention_sage(*args, **kwargs)


OTHERS = {
    "a function of the pack": held(own_attention),
    "a function in the guise of another": held(attention_sage_and_more),
    "what the guise wraps, by the guise": held_inside(held_inside),
    "what is given": flash_attention_override,
    "twice the result": sage_twice,
    "a note beside": sage_and_a_note,
    "another scale": sage_scaled,
    "fewer arguments": sage_without_options,
    "all arguments": sage_of_the_chosen,
    "an argument less": sage_with_more,
    "an object": SageAttention(),
    "a part of a function": functools.partial(sage_twice),
    "a number": held(3),
    "nothing": None,
}
