// The pack's own words in the editor's language, as ComfyUI serves them from `locales/*/main.json`.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { words } from './words.js'

let trees = []

/** Fetches the texts, once; to be awaited before `t`. */
export const loaded = (async () => {
  const language = app.extensionManager.setting.get('Comfy.Locale') ?? 'en'
  try {
    const all = await (await api.fetchApi('/i18n')).json()
    trees = [all[language], all[language.split('-')[0]], all.en].map((tree) => tree?.paralleldit ?? {})
  } catch (error) {
    console.warn('[ParallelDiT]', error) // what is shown then has names in place of words
  }
})()

/** The text at a path like 'panel.stop', with {names} filled in. */
export const t = (path, values) => words(trees, path, values)
