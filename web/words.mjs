// Pure: finds texts of `locales/*/main.json` in the editor's language. `text.mjs` fetches them.

/**
 * Returns the text at a dotted path, from the first of these trees that has it, with values for its {names}. Without
 * such a text, returns the path.
 */
export function findText(trees, path, values = {}) {
  for (const tree of trees) {
    const found = getAt(tree, path)
    if (typeof found === 'string') return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
  }
  return path
}

/**
 * Translates an English text that was made from a template. The last tree has the English templates, under the path;
 * the first tree that has the template's key gives the translation. If several templates match, the one with the most
 * words counts. A text without a template is returned as it is.
 */
export function translate(trees, path, text) {
  const templates = Object.entries(getAt(trees.at(-1), path) ?? {})
  const matching = templates.filter(([, template]) => matchTemplate(template, text))
  if (!matching.length) return text
  const [key, template] = matching.reduce((one, other) => (countFixed(other[1]) > countFixed(one[1]) ? other : one))
  return findText(trees, `${path}.${key}`, matchTemplate(template, text))
}

const getAt = (tree, path) => path.split('.').reduce((node, key) => node?.[key], tree)

const NAMES = /\{(\w+)\}/g

/** Counts the characters of a template outside of its {names}. */
const countFixed = (template) => template.replace(NAMES, '').length

/** Returns the values of the {names} that turn a template into this text; null if the text is not made from it. */
function matchTemplate(template, text) {
  const names = [...template.matchAll(NAMES)].map(([, name]) => name)
  const pieces = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
  const found = text.match(new RegExp(`^${pieces.join('(.+)')}$`))
  return found && Object.fromEntries(names.map((name, index) => [name, found[index + 1]]))
}
