// The pack's own texts in the editor's language. ComfyUI serves them from `locales/*/main.json` and `settings.json`.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { splitFields } from './errors/message.mjs'
import { findText, joinSentences, selectTrees, translate } from './words.mjs'

let trees = []

/** Returns the editor's language. Times are formatted by it, too. */
export const getLanguage = () => app.extensionManager.setting.get('Comfy.Locale') ?? 'en'

/** Fetches the texts once. Await it before the first call of `t`. */
export const textsLoaded = (async () => {
  try {
    trees = selectTrees(await (await api.fetchApi('/i18n')).json(), getLanguage())
  } catch (error) {
    console.warn('[ParallelDiT]', error) // the editor then shows the names of the texts
  }
})()

/** Joins words as in "a, b or c". */
export const joinWithOr = (words) => new Intl.ListFormat(getLanguage(), { type: 'disjunction' }).format(words)

/** Translates a text of the server, which is English, into the editor's language: `said` has the templates. */
export const translateSaid = (text) => translate(trees, 'said', text)

/** Returns the text at a path like 'panel.stop', with values for its {names}. Some values are texts of the server. */
export function t(path, values = {}) {
  const said = Object.entries(values).map(([name, value]) => [
    name,
    typeof value === 'string' ? translateSaid(value) : value
  ])
  return findText(trees, path, Object.fromEntries(said))
}

/** Translates the fields of an error's text, see `splitFields`. Details stay as they are. */
export const translateFields = ({ cause, advice, details }) => ({
  cause: translateSaid(cause),
  advice: translateSaid(advice),
  details
})

/** Returns an error's cause and advice in one line, without its details. */
export function summarizeError(text) {
  const { cause, advice } = translateFields(splitFields(text))
  return joinSentences([cause, advice])
}
