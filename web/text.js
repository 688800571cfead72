// The pack's own words in the editor's language, as ComfyUI serves them from `locales/*/main.json`.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { words } from './words.js'

let trees = []

/** Fetches the texts, once; to be awaited before `t`. */
export const loaded = (async () => {
  const response = await api.fetchApi('/i18n')
  const all = await response.json()
  const language = app.extensionManager.setting.get('Comfy.Locale') ?? 'en'
  trees = [all[language], all.en].map((tree) => tree?.paralleldit ?? {})
})()

/** The text at a path like 'panel.stop', with {names} filled in. */
export const t = (path, values) => words(trees, path, values)
