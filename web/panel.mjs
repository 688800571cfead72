// The sidebar panel of the worker groups. It asks the server when the page loads, and again when a lost connection is
// back. From then on, events bring all changes.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { makeComparisonView } from './compare/view.mjs'
import { addStyle } from './elements.mjs'
import { Actions } from './panel/actions.mjs'
import { applyAnswer, applyEvent, applyLog, createModel, getBadge, isLogOld, openLog } from './panel/state.mjs'
import { throttle } from './panel/throttle.mjs'
import { PanelView } from './panel/view.mjs'
import { findNextRuns, onAnswer } from './plan/answers.mjs'
import { onChange } from './settings/server.mjs'
import { t, textsLoaded } from './text.mjs'

const ID = 'paralleldit'
const LOG_LINES = 500
const PAUSE_MS = 350 // between two drawings

class Panel {
  constructor() {
    this.model = createModel()
    this.view = null // made when the tab is opened first
    this.isShown = false
    this.missed = null // events since the question to the server
    this.badge = ''
    this.actions = new Actions(app, api, (hasOthers) => (hasOthers ? this.ask() : this.draw()))
    const clock = { now: () => performance.now(), wait: (act, milliseconds) => setTimeout(act, milliseconds) }
    this.drawSoon = throttle(() => this.draw(), PAUSE_MS, clock)
  }

  listen() {
    api.addEventListener('paralleldit.group', ({ detail }) => {
      this.missed?.push(detail)
      this.setModel(applyEvent(this.model, detail))
    })
    api.addEventListener('reconnecting', () => this.setModel({ ...this.model, connected: false }))
    api.addEventListener('reconnected', () => this.ask())
    api.addEventListener('status', () => this.ask(), { once: true }) // events begin with the connection
    onAnswer(() => this.drawSoon())
    onChange(() => this.ask()) // the devices may be others
    api.addEventListener('graphChanged', () => this.drawSoon()) // a node may have been removed
    document.addEventListener('visibilitychange', () => this.drawSoon())
  }

  /** Asks for the groups. Events that arrive before the answer may be newer than it, so they are applied after it. */
  async ask() {
    const missed = []
    this.missed = missed
    try {
      const response = await api.fetchApi('/paralleldit/groups')
      if (!response.ok) throw new Error(await response.text())
      const answer = await response.json()
      if (this.missed === missed) this.setModel(missed.reduce(applyEvent, applyAnswer(this.model, answer)))
    } catch (error) {
      this.setModel({ ...this.model, connected: true, problem: t('panel.problem', { reason: error.message }) })
    } finally {
      if (this.missed === missed) this.missed = null
    }
  }

  /** Reads the end of a rank's log, if the group has changed since the last time. */
  async readLog(number, rank) {
    if (!isLogOld(this.model, number, rank)) return
    this.setModel(openLog(this.model, number, rank))
    let text = null
    try {
      const response = await api.fetchApi(`/paralleldit/logs?group=${number}&rank=${rank}&lines=${LOG_LINES}`)
      text = response.ok ? await response.text() : ''
    } catch (error) {
      console.warn('[ParallelDiT]', error) // it is read again with the next event
    }
    this.setModel(applyLog(this.model, number, rank, text))
  }

  setModel(model) {
    this.model = model
    this.drawSoon()
    if (getBadge(model) !== this.badge) this.updateBadge()
  }

  /** Shows on the tab's icon what the groups do, once there is a tab. */
  updateBadge() {
    const tab = app.extensionManager?.getSidebarTabs().find(({ id }) => id === ID)
    if (tab) tab.iconBadge = this.badge = getBadge(this.model)
  }

  /** Draws the panel, unless its tab is closed or the page is hidden. */
  draw() {
    if (this.isShown && !document.hidden) this.view.update(this.model)
  }

  /** Shows the panel in an element of the editor. The editor may call this again. */
  render(parent) {
    this.view ??= new PanelView(
      this.actions,
      (number, rank) => this.readLog(number, rank),
      () => this.ask(),
      () => makeComparisonView(app, api),
      () => findNextRuns(app.rootGraph)
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

const panel = new Panel()
panel.listen() // before the first message, since the editor warns of messages without a listener

app.registerExtension({
  name: 'ParallelDiT.Panel',
  async setup() {
    await textsLoaded
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
    panel.updateBadge()
  }
})
