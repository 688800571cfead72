"""CHOOSE has, by kernel and form, overrides that only choose a kernel. OTHERS do something of their own, whatever their
names."""

import functools

from comfy.ldm.modules import attention
from comfy.ldm.modules.attention import attention3_sage, attention_flash, attention_pytorch, attention_sage

seen = []


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
    "flash by what a name wraps": by_inner_name,
    "split by a module": by_module,
    "sage held without its wrapper": held(attention_sage.__wrapped__),
    "sage held, called without its wrapper": held_inside(attention_sage),
    "sage3 in a lambda": lambda _func, *args, **kwargs: attention3_sage(*args, **kwargs),
    "pytorch held": held(attention_pytorch),
}


@functools.wraps(attention_sage)
def attention_sage_and_more(*args, **kwargs):
    return 2 * attention_sage(*args, **kwargs)


def sage_twice(_func, *args, **kwargs):
    return 2 * attention_sage(*args, **kwargs)


def sage_and_a_note(_func, *args, **kwargs):
    seen.append(len(args))
    return attention_sage(*args, **kwargs)


def sage_scaled(_func, *args, **kwargs):
    return attention_sage(*args, scale=2.0, **kwargs)


def sage_of_the_chosen(*args, **kwargs):
    return attention_sage(*args, **kwargs)


class SageAttention:
    def __call__(self, _func, *args, **kwargs):
        return attention_sage(*args, **kwargs)


OTHERS = {
    "a function in the guise of another": held(attention_sage_and_more),
    "what the guise wraps, by the guise": held_inside(held_inside),
    "twice the result": sage_twice,
    "a note beside": sage_and_a_note,
    "another scale": sage_scaled,
    "all arguments": sage_of_the_chosen,
    "an object": SageAttention(),
    "a number": held(3),
}
