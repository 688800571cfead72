// Changes elements in place instead of making them anew, so that focus, selection and scroll position stay.

import { element } from '../elements.mjs'

/** Sets an element's text, if it differs. */
export function setText(target, words) {
  if (target.textContent !== words) target.textContent = words
}

/** Sets an attribute, if it differs; null removes it. */
export function setAttribute(target, name, value) {
  if (value === null) target.removeAttribute(name)
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value)
}

/** Shows an element, or hides it. */
export function setShown(target, yes) {
  target.hidden = !yes
}

/**
 * Keeps one child element for each item of a list: makes it once for the item's key, updates, orders and removes it.
 */
export class Children {
  /** make: takes an item and returns an object with `element` and `update(item)`. */
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

/** Makes a unique id for `aria-labelledby` and `for`. */
export const makeId = (name) => `paralleldit-${name}-${++lastId}`

/** Makes a part of the panel that folds. `aside` is for a few words next to its heading. */
export function makeFold(title, open, ...children) {
  const aside = element('span', { class: 'paralleldit-aside' })
  const summary = element('summary', {}, element('h4', {}, title), aside)
  const details = element('details', { class: 'paralleldit-fold', ...(open ? { open: '' } : {}) }, summary, ...children)
  return { element: details, aside }
}
