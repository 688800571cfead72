// Elements that are made once and then changed in place, so that focus, selection and scrolling stay where they are.

import { element } from '../elements.mjs'

/** Sets an element's text, where it is another. */
export function text(target, words) {
  if (target.textContent !== words) target.textContent = words
}

/** Sets an attribute, where it is another; null removes it. */
export function attribute(target, name, value) {
  if (value === null) target.removeAttribute(name)
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value)
}

/** Shows an element if there is something to show. */
export function shown(target, yes) {
  target.hidden = !yes
}

/** The children of one element, one an item: each made once for its key, updated, put in order, and removed at last. */
export class Children {
  /** make: from an item to an object with `element` and `update(item)`. */
  constructor(parent, keyOf, make) {
    this.parent = parent
    this.keyOf = keyOf
    this.make = make
    this.views = new Map()
  }

  update(items) {
    const gone = new Set(this.views.keys())
    items.forEach((item, at) => {
      const key = this.keyOf(item)
      gone.delete(key)
      if (!this.views.has(key)) this.views.set(key, this.make(item))
      const view = this.views.get(key)
      const there = this.parent.children[at]
      if (there !== view.element) this.parent.insertBefore(view.element, there ?? null)
      view.update(item)
    })
    for (const key of gone) {
      this.views.get(key).element.remove()
      this.views.delete(key)
    }
  }
}

let lastId = 0

/** An id for `aria-labelledby` and `for`. */
export const uniqueId = (name) => `paralleldit-${name}-${++lastId}`

/** A part of the panel that folds, under a heading with a few words beside it. */
export function fold(title, open, ...children) {
  const aside = element('span', { class: 'paralleldit-aside' })
  const summary = element('summary', {}, element('h4', {}, title), aside)
  const details = element('details', { class: 'paralleldit-fold', ...(open ? { open: '' } : {}) }, summary, ...children)
  return { element: details, aside }
}
