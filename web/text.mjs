// The pack's own words in the editor's language, as ComfyUI serves them from `locales/*/main.json`.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { fieldsOf } from './errors/message.mjs'
import { retold, words } from './words.mjs'

let trees = []

/** The editor's language, by which times are told, too. */
export const language = () => app.extensionManager.setting.get('Comfy.Locale') ?? 'en'

/** Fetches the texts, once; to be awaited before `t`. */
export const loaded = (async () => {
  const own = language()
  try {
    const all = await (await api.fetchApi('/i18n')).json()
    trees = [all[own], all[own.split('-')[0]], all.en].map((tree) => tree?.paralleldit ?? {})
  } catch (error) {
    console.warn('[ParallelDiT]', error) // what is shown then has names in place of words
  }
})()

/** "a, b or c" of these words. */
export const either = (words) => new Intl.ListFormat(language(), { type: 'disjunction' }).format(words)

/** The text at a path like 'panel.stop', with {names} filled in. */
export const t = (path, values) => words(trees, path, values)

/**
 * An error's advice, which is English, in the editor's language: each line that is made of one of `errors.advices`.
 *
 * The English words are their own key, as in gettext: whatever carries the text of an error carries them, nothing has to
 * be kept for a page that is loaded later or beside, and an advice that no language has is shown as it was given.
 */
export const advised = (advice) =>
  advice
    .split('\n')
    .map((line) => retold(trees, 'errors.advices', line))
    .join('\n')

/** What an error's text says before its details, in a line. */
export function brief(text) {
  const { cause, advice } = fieldsOf(text)
  return [cause, advised(advice)].filter(Boolean).join(' ')
}
