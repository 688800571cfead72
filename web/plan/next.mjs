// The panel's part about the next run: its memory and time, as the open workflow's nodes show them, too.

import { element } from '../elements.mjs'
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

  update(_group, { runs }) {
    setShown(this.element, runs.length)
    const drawn = JSON.stringify(runs)
    if (drawn === this.drawn) return
    this.drawn = drawn
    this.runs.replaceChildren(...runs.map(makeRun))
  }
}

function makeRun({ answer, models }) {
  const names = [...new Set(models)].map(getFileName).join(', ')
  const name = element('p', { class: 'paralleldit-strong paralleldit-cut-off', title: models.join(', ') }, names)
  const content = element('div', { class: 'paralleldit-plan-content' })
  draw(content, answer, [], makeBrief)
  return element('div', {}, name, element('div', { class: 'paralleldit-plan' }, content))
}
