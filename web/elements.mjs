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

/** Adds a style sheet to the page. url: absolute, made from the caller's `import.meta.url`. */
export function addStyle(url) {
  document.head.append(element('link', { rel: 'stylesheet', href: url }))
}
