// Makes elements of the page, and adds the pack's style sheets to it.

const SVG = 'http://www.w3.org/2000/svg'

/** Makes an HTML element with these attributes and children. A string among the children becomes text. */
export function element(tag, attributes = {}, ...children) {
  return fillElement(document.createElement(tag), attributes, children)
}

/** Makes an SVG element, as `element` makes an HTML one. */
export function svg(tag, attributes = {}, ...children) {
  return fillElement(document.createElementNS(SVG, tag), attributes, children)
}

function fillElement(target, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) target.setAttribute(name, value)
  target.append(...children)
  return target
}

/**
 * Calls `act`, which fills an element anew. Folds that were open stay open. The focus goes to the fold or link with the
 * same words, or else to the first fold: not to a button, which may be that of another plan.
 */
export function refill(target, act) {
  const focused = target.contains(document.activeElement) ? document.activeElement.textContent : null
  const open = [...target.querySelectorAll('details')].map((details) => details.open)
  act()
  for (const [place, details] of target.querySelectorAll('details').entries()) details.open ||= open[place] ?? false
  if (focused === null || target.contains(document.activeElement)) return
  const controls = [...target.querySelectorAll('summary, a')]
  const next = controls.find((control) => control.textContent === focused) ?? controls[0]
  next?.focus({ preventScroll: true })
}

/** Adds a style sheet to the page. url: absolute, made from the caller's `import.meta.url`. */
export function addStyle(url) {
  document.head.append(element('link', { rel: 'stylesheet', href: url }))
}
