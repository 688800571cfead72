// Pure: from the texts of `locales/*/main.json` to words in the editor's language. `text.js` fetches them.

/**
 * The text at a dotted path of the first of these trees that has it, with {names} filled in; the path itself if none
 * has.
 */
export function words(trees, path, values = {}) {
  for (const tree of trees) {
    const found = path.split('.').reduce((node, key) => node?.[key], tree)
    if (typeof found === 'string') return found.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole)
  }
  return path
}
