// Elements of a page, and the style sheets that the pack adds to it.

const SVG = 'http://www.w3.org/2000/svg'

/** An element with these attributes and children; a child that is a string becomes text. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children)
}

/** As `element`, of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children)
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
  made.append(...children)
  return made
}

/** Adds a style sheet to the page. url: against that of the module that asks for it. */
export function addStyle(url) {
  document.head.append(element('link', { rel: 'stylesheet', href: url }))
}
