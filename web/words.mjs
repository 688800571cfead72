// Pure: from the texts of `locales/*/main.json` to words in the editor's language. `text.mjs` fetches them.

/**
 * The text at a dotted path of the first of these trees that has it, with {names} filled in; the path itself if none
 * has.
 */
export function words(trees, path, values = {}) {
  for (const tree of trees) {
    const found = at(tree, path)
    if (typeof found === 'string') return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
  }
  return path
}

/**
 * A text that was made elsewhere of an English template, one of those under the path in the last tree, in the first
 * language that has it; as it is if it was made of none. Where it could be of several, the one with the most words is it.
 */
export function retold(trees, path, text) {
  const templates = Object.entries(at(trees.at(-1), path) ?? {})
  const made = templates.filter(([, template]) => filledIn(template, text))
  if (!made.length) return text
  const [key, template] = made.reduce((one, other) => (fixed(other[1]) > fixed(one[1]) ? other : one))
  return words(trees, `${path}.${key}`, filledIn(template, text))
}

const at = (tree, path) => path.split('.').reduce((node, key) => node?.[key], tree)

const NAMES = /\{(\w+)\}/g

/** How much of a template is words of its own. */
const fixed = (template) => template.replace(NAMES, '').length

/** What has to be filled in for its {names} to make this text of a template; null where nothing does. */
function filledIn(template, text) {
  const names = [...template.matchAll(NAMES)].map(([, name]) => name)
  const pieces = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
  const found = text.match(new RegExp(`^${pieces.join('(.+)')}$`))
  return found && Object.fromEntries(names.map((name, index) => [name, found[index + 1]]))
}
