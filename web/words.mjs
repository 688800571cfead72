// Pure: finds texts of `locales/*/main.json` in the editor's language. `text.mjs` fetches them.

/**
 * Returns the trees of texts that `findText` and `translate` take: of the language, of the language without its region,
 * and of English, each once. all: what ComfyUI serves for each language.
 */
export function selectTrees(all, language) {
  const found = new Set([all[language], all[language.split('-')[0]], all.en])
  return [...found].filter(Boolean).map((tree) => ({
    ...tree.paralleldit,
    settings: { ...tree.settings, ...tree.paralleldit?.settings }
  }))
}

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
 * Translates an English text of the server that was made from templates. The last tree has the English templates, under
 * the path; the first tree that has a template's key gives the translation. So a text is its own key, as in gettext.
 *
 * Each line may be one sentence or several. Of the templates that make its start, up to the end of a sentence, the one
 * with the most words counts, and then the shortest such start. What fills a template is translated, too. A sentence
 * without a template is returned as it is. The parts of a plan are translated one by one.
 */
export function translate(trees, path, text) {
  if (!text || trees[0] === trees.at(-1)) return text
  const templates = compileTemplates(getAt(trees.at(-1), path))
  const translateLine = (line) => {
    const ends = [...[...line.matchAll(SENTENCE_END)].map(({ 0: end, index }) => index + end.length), line.length]
    const found = findTemplate(templates, line, ends)
    const end = found?.end ?? ends[0]
    const rest = line.slice(end).trimStart()
    if (!found && rest) return joinSentences([line.slice(0, end), translateLine(rest)])
    if (!found) return line.includes(TIMES) ? line.split(TIMES).map(translateLine).join(TIMES) : line
    const values = Object.entries(found.values).map(([name, value]) => [name, translateLine(value)])
    const words = findText(trees, `${path}.${found.key}`, Object.fromEntries(values))
    return joinSentences([words, translateLine(rest)])
  }
  return text.split('\n').map(translateLine).join('\n')
}

/** Joins sentences. After a full-width character there is no space. */
export const joinSentences = (sentences) =>
  sentences
    .filter(Boolean)
    .reduce((said, next) => said + (FULL_WIDTH.test(said) ? '' : ' ') + next, '')
    .trimStart()

const getAt = (tree, path) => path.split('.').reduce((node, key) => node?.[key], tree)

const NAMES = /\{(\w+)\}/g
const FULL_WIDTH = /[\u3000-\u303f\uff00-\uffef]$/
const TIMES = ' × ' // between the parts of a plan
const SENTENCE_END = /[.!?]\)?(?= )/g

const compiled = new WeakMap() // by the templates

/** Compiles each template to {key, names, pattern, fixed}, the one with the most characters of its own first. */
function compileTemplates(templates = {}) {
  if (!compiled.has(templates)) {
    const all = Object.entries(templates).map(([key, template]) => {
      const pieces = template.split(/\{\w+\}/).map((piece) => piece.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'))
      const names = [...template.matchAll(NAMES)].map(([, name]) => name)
      return { key, names, pattern: new RegExp(`^${pieces.join('(.+)')}$`), fixed: template.replace(NAMES, '').length }
    })
    compiled.set(
      templates,
      all.sort((one, other) => other.fixed - one.fixed)
    )
  }
  return compiled.get(templates)
}

/**
 * Finds the template that makes the line's start up to one of these ends, and the values of its {names}; undefined if
 * there is none.
 */
function findTemplate(templates, line, ends) {
  for (const { key, names, pattern } of templates) {
    for (const end of ends) {
      const found = line.slice(0, end).match(pattern)
      if (found) return { key, end, values: Object.fromEntries(names.map((name, index) => [name, found[index + 1]])) }
    }
  }
  return undefined
}
