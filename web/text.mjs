// The pack's own texts in the editor's language. ComfyUI serves them from `locales/*/main.json`.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { splitFields } from './errors/message.mjs'
import { findText, translate } from './words.mjs'

let trees = []

/** Returns the editor's language. Times are formatted by it, too. */
export const getLanguage = () => app.extensionManager.setting.get('Comfy.Locale') ?? 'en'

/** Fetches the texts once. Await it before the first call of `t`. */
export const textsLoaded = (async () => {
  const own = getLanguage()
  try {
    const all = await (await api.fetchApi('/i18n')).json()
    trees = [all[own], all[own.split('-')[0]], all.en].map((tree) => tree?.paralleldit ?? {})
  } catch (error) {
    console.warn('[ParallelDiT]', error) // the editor then shows the names of the texts
  }
})()

/** Joins words as in "a, b or c". */
export const joinWithOr = (words) => new Intl.ListFormat(getLanguage(), { type: 'disjunction' }).format(words)

/** Returns the text at a path like 'panel.stop', with values for its {names}. */
export const t = (path, values) => findText(trees, path, values)

/**
 * Translates an error's advice, which is English, into the editor's language, line by line.
 *
 * The English text is its own key, as in gettext: `errors.advices` has its templates. So an error carries nothing but
 * its text, and every page can translate it. A line without a template stays English.
 */
export const translateAdvice = (advice) =>
  advice
    .split('\n')
    .map((line) => translate(trees, 'errors.advices', line))
    .join('\n')

/** Returns an error's cause and advice in one line, without its details. */
export function summarizeError(text) {
  const { cause, advice } = splitFields(text)
  return [cause, translateAdvice(advice)].filter(Boolean).join(' ')
}
