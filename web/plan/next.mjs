// The panel's part about the next run: its memory and time, as the open workflow's nodes show them, too.

import { element, refill } from '../elements.mjs'
import { addUseButtons, usePlan } from '../loader/use.mjs'
import { makeFold, setShown } from '../panel/dom.mjs'
import { getFileName } from '../panel/format.mjs'
import { t } from '../text.mjs'
import { draw, makeBrief } from './view.mjs'

export class NextView {
  constructor() {
    this.runs = element('div', { class: 'paralleldit-next' })
    this.element = makeFold(t('panel.next'), true, this.runs).element
    this.element.dataset.testid = 'paralleldit-next'
    this.drawn = ''
  }

  update({ number, status }, { runs }) {
    setShown(this.element, runs.length)
    const drawn = JSON.stringify([status.name, runs])
    if (drawn === this.drawn) return
    this.drawn = drawn
    refill(this.runs, () => this.runs.replaceChildren(...runs.map((run) => makeRun(run, number, status.name))))
  }
}

/** loaded: the model that the panel names above; it is not named again. */
function makeRun({ answer, models }, group, loaded) {
  const names = [...new Set(models)].map(getFileName).join(', ')
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names)
  const content = element('div', { class: 'paralleldit-plan-content' })
  draw(content, answer, null, makeBrief)
  addUseButtons(content, answer, (values) => usePlan(values, group))
  name.hidden = models.every((model) => model === loaded)
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}
