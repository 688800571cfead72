// The sidebar panel of the worker groups. What it shows comes by events, from the moment that the server is asked: once
// when the page loads, and again when a lost connection is back.

import { api } from '../../scripts/api.js'
import { app } from '../../scripts/app.js'
import { comparisonView } from './compare/view.mjs'
import { addStyle } from './elements.mjs'
import { Actions } from './panel/actions.mjs'
import { paced } from './panel/pace.mjs'
import { answered, badgeOf, empty, opened, read, told } from './panel/state.mjs'
import { PanelView } from './panel/view.mjs'
import { follow, nextRuns } from './plan/answers.mjs'
import { loaded, t } from './text.mjs'

const ID = 'paralleldit'
const LOG_LINES = 200
const PAUSE_MS = 350 // between two drawings

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
    this.badge = ''
    this.actions = new Actions(app, api, () => this.draw())
    const clock = { now: () => performance.now(), later: (act, wait) => setTimeout(act, wait) }
    this.drawSoon = paced(() => this.draw(), PAUSE_MS, clock)
  }

  listen() {
    api.addEventListener('paralleldit.group', ({ detail }) => {
      this.waiting?.push(detail)
      this.become(told(this.model, detail))
    })
    api.addEventListener('reconnecting', () => this.become({ ...this.model, connected: false }))
    api.addEventListener('reconnected', () => this.ask())
    follow(() => this.drawSoon())
    api.addEventListener('graphChanged', () => this.drawSoon()) // a loader may be gone
    document.addEventListener('visibilitychange', () => this.drawSoon())
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
    this.drawSoon()
    if (badgeOf(model) !== this.badge) this.mark()
  }

  /** Has the tab's icon tell what the groups do, once there is a tab. */
  mark() {
    const tab = app.extensionManager?.getSidebarTabs().find(({ id }) => id === ID)
    if (tab) tab.iconBadge = this.badge = badgeOf(this.model)
  }

  /** Nobody sees a tab that is not open, or a page behind another. */
  draw() {
    if (this.isShown && !document.hidden) this.view.update(this.model)
  }

  /** Shows the panel in an element of the editor's, which may ask for it again. */
  render(parent) {
    this.view ??= new PanelView(
      this.actions,
      (number, rank) => this.openLog(number, rank),
      () => this.ask(),
      () => comparisonView(app, api),
      () => nextRuns(app.rootGraph)
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
panel.listen() // before the first message: the editor complains of one that nobody listens to

app.registerExtension({
  name: 'ParallelDiT.Panel',
  async setup() {
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
    panel.mark()
  }
})
