// Sends the server what a button asks for. While a job runs, it asks the person first. It shows a refusal as a toast.

import { element } from '../elements.mjs'
import { summarizeError, t } from '../text.mjs'

const TRACE_FILE = 'paralleldit-trace.json'
const ENDS_A_JOB = ['stop', 'restart', 'park']

export class Actions {
  /** app, api: the editor's. onChange: called when a request begins or ends; with true if the server has other groups. */
  constructor(app, api, onChange) {
    this.app = app
    this.api = api
    this.onChange = onChange
    this.pending = new Set()
    this.stops = 0
  }

  /** Returns whether the server has yet to answer this action of this group. */
  isPending(action, number) {
    return this.pending.has(`${action} ${number}`)
  }

  /** isBusy: whether a job runs. */
  async run(action, number, isBusy) {
    if (isBusy && ENDS_A_JOB.includes(action) && !(await this.confirm(action))) return
    if (this.isPending(action, number)) return
    if (action === 'stop') this.stops++
    const stops = this.stops
    this.pending.add(`${action} ${number}`)
    this.onChange()
    try {
      const response = await this.api.fetchApi(`/paralleldit/${action}?group=${number}`, { method: 'POST' })
      const wasStopped = action !== 'stop' && stops !== this.stops // the person knows why it failed
      if (!response.ok && !wasStopped) this.showError(action, summarizeError(await response.text()))
    } catch (error) {
      this.showError(action, error.message)
    } finally {
      this.pending.delete(`${action} ${number}`)
      this.onChange(action === 'remove')
    }
  }

  /** Saves the ranks' timeline as a file, for Perfetto. */
  async saveTrace(number) {
    try {
      const response = await this.api.fetchApi(`/paralleldit/trace?group=${number}`)
      if (!response.ok) return this.showError('trace', summarizeError(await response.text()))
      const url = URL.createObjectURL(await response.blob())
      element('a', { href: url, download: TRACE_FILE }).click()
      URL.revokeObjectURL(url)
    } catch (error) {
      this.showError('trace', error.message)
    }
  }

  confirm(action) {
    const words = { title: t(`panel.confirm.${action}.title`), message: t(`panel.confirm.${action}.message`) }
    return this.app.extensionManager.dialog.confirm({ ...words, type: 'default' })
  }

  showError(action, detail) {
    this.app.extensionManager.toast.add({ severity: 'error', summary: t(`panel.refused.${action}`), detail })
  }
}
