// Reads and changes the pack's settings, which the server keeps. A refusal is shown as a toast.

import { api } from '../../../scripts/api.js'
import { app } from '../../../scripts/app.js'
import { summarizeError, t } from '../text.mjs'

const ROUTE = '/paralleldit/settings'
const listeners = []

/** Calls `listener` with the server's answer after each change. */
export const onChange = (listener) => listeners.push(listener)

/** Returns the server's answer about the settings; null if there is none. */
export const readSettings = () => ask('settings.unread')

/** Sets settings by name; null is the default. Returns the server's new answer, or null if it has refused. */
export async function changeSettings(changes) {
  const answer = await ask('settings.refused', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(changes)
  })
  if (answer?.outdated.length) show('info', t('settings.changed'), t('settings.outdated'))
  if (answer) for (const listener of listeners) listener(answer)
  return answer
}

async function ask(problem, request) {
  try {
    const response = await api.fetchApi(ROUTE, request)
    if (response.ok) return await response.json()
    show('error', t(problem), summarizeError(await response.text()))
  } catch (error) {
    show('error', t(problem), error.message)
  }
  return null
}

function show(severity, summary, detail) {
  app.extensionManager.toast.add({ severity, summary, detail, life: 10_000 })
}
