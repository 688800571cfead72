// The sidebar panel of the worker groups. What it shows comes by events, from the moment that the server is asked: once
// when the page loads, and again when a lost connection is back.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { addStyle } from './elements.js'
import { Actions } from './panel/actions.js'
import { answered, badgeOf, empty, opened, read, told } from './panel/state.js'
import { PanelView } from './panel/view.js'
import { loaded, t } from './text.js'

const ID = 'paralleldit'
const LOG_LINES = 200

/** By which ComfyUI knows this page, once it is connected. */
async function pageId() {
  if (!api.clientId) await new Promise((resolve) => api.addEventListener('status', resolve, { once: true }))
  return encodeURIComponent(api.clientId)
}

class Panel {
  constructor() {
    this.model = empty()
    this.view = null // made when the tab is first opened, and kept
    this.isShown = false
    this.waiting = null // the events since the server was asked
    this.actions = new Actions(app, api, () => this.draw())
  }

  listen() {
    api.addEventListener('paralleldit.group', ({ detail }) => {
      this.waiting?.push(detail)
      this.become(told(this.model, detail))
    })
    api.addEventListener('reconnecting', () => this.become({ ...this.model, connected: false }))
    api.addEventListener('reconnected', () => this.ask())
  }

  /** Asks for the groups; the events that come meanwhile are newer than the answer, or the next ones are. */
  async ask() {
    const waiting = []
    this.waiting = waiting
    try {
      const response = await api.fetchApi(`/paralleldit/groups?listener=${await pageId()}`)
      if (!response.ok) throw new Error(await response.text())
      const answer = await response.json()
      const late = waiting.map((event) => ({ ...event, log: [] }))
      if (this.waiting === waiting) this.become(late.reduce(told, answered(this.model, answer)))
    } catch (error) {
      this.become({ ...this.model, connected: true, problem: t('panel.problem', { reason: error.message }) })
    } finally {
      if (this.waiting === waiting) this.waiting = null
    }
  }

  /** Reads the end of a rank's log, if it is not open yet. */
  async openLog(number, rank) {
    if (this.model.groups.find((group) => group.number === number)?.logs[rank]) return
    this.become(opened(this.model, number, rank))
    let text = ''
    try {
      const response = await api.fetchApi(`/paralleldit/logs?group=${number}&rank=${rank}&lines=${LOG_LINES}`)
      if (response.ok) text = await response.text()
    } catch (error) {
      console.warn('[ParallelDiT]', error) // events go on with the log, once the connection is back
    }
    this.become(read(this.model, number, rank, text))
  }

  become(model) {
    this.model = model
    this.draw()
    const tab = app.extensionManager.getSidebarTabs().find(({ id }) => id === ID)
    if (tab && tab.iconBadge !== badgeOf(model)) tab.iconBadge = badgeOf(model)
  }

  draw() {
    if (this.isShown) this.view.update(this.model)
  }

  /** Shows the panel in an element of the editor's, which may ask for it again. */
  render(parent) {
    this.view ??= new PanelView(
      this.actions,
      (number, rank) => this.openLog(number, rank),
      () => this.ask()
    )
    if (this.view.element.parentNode !== parent) parent.append(this.view.element)
    this.isShown = true
    this.draw()
  }

  destroy() {
    this.isShown = false
    this.view?.element.remove()
  }
}

app.registerExtension({
  name: 'ParallelDiT.Panel',
  async setup() {
    const panel = new Panel()
    panel.listen()
    await loaded
    addStyle(new URL('./panel/style.css', import.meta.url))
    app.extensionManager.registerSidebarTab({
      id: ID,
      icon: 'pi pi-server',
      title: t('panel.title'),
      tooltip: t('panel.tooltip'),
      type: 'custom',
      render: (parent) => panel.render(parent),
      destroy: () => panel.destroy()
    })
    await panel.ask()
  }
})
